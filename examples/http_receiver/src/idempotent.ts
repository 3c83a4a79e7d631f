/*
 * Middleware: one effect for each Idempotency-Key, one answer to all who ask.
 *
 * This is the part to copy.  README.md has the table of what is recorded.
 *
 * A handler returns its reply instead of writing it to the response, because
 * the reply has to be recorded before anybody hears it.
 */

import type { RequestHandler, Response } from "express";

import type { Idem, Reservation } from "../../common/idem.js";
import { NotSent, Unanswered } from "../../common/provider.js";
import { keyOf } from "./key.js";
import { Problem, retryAfter } from "./problem.js";

export interface Attempt {
	args: Record<string, unknown>;
	client: string;
	key: string | null;		/* to hand on; null: it is a read */
	maybeRan: boolean;		/* an earlier attempt may have had its effect */
}

export interface Reply {
	status: number;
	headers?: Record<string, string>;
	body: unknown;
}

export type Handler = (attempt: Attempt) => Promise<Reply>;

/* The body is text, so that a replay is the same to the last byte. */
interface Recorded {
	status: number;
	headers: Record<string, string>;
	body: string;
}

/** POST with arguments in JSON, for a client that has been identified. */
export function idempotent(
	idem: Idem, tool: string, handler: Handler,
): RequestHandler {
	return async (request, response) => {
		const client = response.locals["client"] as string;
		/* the key is no part of what is asked */
		const { idempotency_key: argument, ...args } = objectOf(request.body);
		const key = await keyOf(idem, request, { tool, args, argument });
		const answer = await idem.begin(tool, args, key, client);

		switch (answer.status) {
		case "reserved":
			return send(response, await act(idem, answer, handler, {
				args, client,
				key: answer.provider_key, maybeRan: answer.maybe_ran,
			}));
		case "unkeyed":
			return send(response, serialise(await handler(
				{ args, client, key: null, maybeRan: false })));
		case "done":
		case "failed":
			response.setHeader("Idempotent-Replayed", "true");
			return send(response, answer.result as Recorded);
		case "in_progress":
			throw new Problem(409, "This request is being carried out. Repeat"
				+ " it with the same key to hear the outcome.",
			{ code: "IK005", headers: retryAfter(answer.retry_after ?? 1) });
		case "expired":
			throw new Problem(409, "Nobody knows whether this was carried out,"
				+ " and it is too late to repeat it. Ask a person; do not use"
				+ " another key.", { code: "IK006" });
		}
	};
}

async function act(
	idem: Idem, won: Reservation, handler: Handler, attempt: Attempt,
): Promise<Recorded> {
	let reply: Recorded;
	try {
		reply = serialise(await handler(attempt));
	} catch (error) {
		if (error instanceof NotSent) {
			await idem.release(won);
			throw notCarriedOut(error);
		}
		await idem.abandon(won);
		throw unknownOutcome(error);
	}

	/* outside the try: whatever happens now, the handler has had its effect */
	switch (settlement(reply.status)) {
	case "complete":
		if (!await idem.complete(won, reply))
			throw replaced();
		break;
	case "fail":
		if (!await idem.fail(won, reply))
			throw replaced();
		break;
	case "release":
		await idem.release(won);
		break;
	case "abandon":
		await idem.abandon(won);
		break;
	}
	return reply;
}

const TRANSIENT = [408, 409, 425, 429];

/** Only what is final is recorded. */
export function settlement(
	status: number,
): "complete" | "fail" | "release" | "abandon" {
	if (status >= 500)
		return "abandon";
	if (status < 400)
		return "complete";
	return TRANSIENT.includes(status) ? "release" : "fail";
}

function notCarriedOut(cause: unknown): Problem {
	return new Problem(503, "This was not carried out. Repeat the same request"
		+ " with the same key.", { cause, headers: retryAfter(1) });
}

function unknownOutcome(cause: unknown): Problem {
	if (!(cause instanceof Unanswered))
		console.error(cause);
	return new Problem(cause instanceof Unanswered ? 502 : 500,
		"It is not known whether this was carried out. Repeat the same request"
		+ " with the same key; it is not carried out twice.",
		{ cause, headers: retryAfter(1) });
}

/* the lease was over, and another attempt has the key */
function replaced(): Problem {
	return new Problem(409, "Another attempt has replaced this one. Repeat the"
		+ " same request with the same key to hear the outcome.",
	{ code: "IK002", headers: retryAfter(1) });
}

function objectOf(body: unknown): Record<string, unknown> {
	if (typeof body !== "object" || body === null || Array.isArray(body))
		throw new Problem(400, "The body must be a JSON object.");
	return body as Record<string, unknown>;
}

function serialise({ status, headers, body }: Reply): Recorded {
	return {
		status,
		headers: { "Content-Type": "application/json", ...headers },
		body: JSON.stringify(body),
	};
}

function send(response: Response, { status, headers, body }: Recorded): void {
	response.writeHead(status, headers);
	response.end(body);
}
