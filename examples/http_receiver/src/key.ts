/* Where the key of a call comes from. */

import type { Request } from "express";

import type { Idem } from "../../common/idem.js";
import { Problem } from "./problem.js";

/* a String of RFC 8941, as the draft wants it, or what most clients send */
const QUOTED = /^"((?:[ !#-[\]-~]|\\["\\])*)"$/;
const BARE = /^[!#-+\--:<-[\]-~]+$/;

export interface Call {
	tool: string;
	args: Record<string, unknown>;
	argument: unknown;			/* idempotency_key among the arguments */
}

/**
 * The header, or else the argument; or else, if the agent's program names
 * the turn of its conversation, a key made of turn, tool and arguments.
 */
export async function keyOf(
	idem: Idem, request: Request, { tool, args, argument }: Call,
): Promise<string | null> {
	const header = parseHeader(request.get("Idempotency-Key"));
	if (argument !== undefined && typeof argument !== "string")
		throw new Problem(400, "idempotency_key must be a string.");
	if (header !== undefined && argument !== undefined && header !== argument)
		throw new Problem(400,
			"Idempotency-Key and idempotency_key are two different keys.");

	const key = header ?? argument;
	if (key !== undefined)
		return key;
	const turn = request.get("Conversation-Turn");
	return turn ? idem.callKey(tool, args, turn) : null;
}

function parseHeader(field: string | undefined): string | undefined {
	if (field === undefined || BARE.test(field))
		return field;
	const quoted = QUOTED.exec(field)?.[1];
	if (quoted === undefined)
		throw new Problem(400,
			"Idempotency-Key must be one string in double quotes.");
	return quoted.replace(/\\(.)/g, "$1");
}
