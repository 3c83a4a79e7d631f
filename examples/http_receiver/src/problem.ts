/* Errors as problem details (RFC 9457), in one place. */

import { STATUS_CODES } from "node:http";

import type { ErrorRequestHandler, Response } from "express";

import { sqlState, Unreachable } from "../../common/idem.js";

interface More {
	code?: string;			/* for the program; the detail is for people */
	headers?: Record<string, string>;
	cause?: unknown;
}

export class Problem extends Error {
	readonly code: string | undefined;
	readonly headers: Record<string, string>;

	constructor(
		readonly status: number, detail: string,
		{ code, headers = {}, cause }: More = {},
	) {
		super(detail, { cause });
		this.code = code;
		this.headers = headers;
	}

	body(): object {
		return {
			type: "about:blank",
			title: STATUS_CODES[this.status],
			status: this.status,
			detail: this.message,
			...this.code === undefined ? {} : { code: this.code },
		};
	}
}

export const retryAfter = (seconds: number) =>
	({ "Retry-After": String(seconds) });

/* what the database says of a key or of arguments that it cannot take */
const STATUS_OF: Record<string, number> = {
	"22004": 400,			/* NULL */
	"22023": 400,			/* a key that is none */
	"22P02": 400,			/* half a surrogate pair in the arguments */
	"22P05": 400,			/* \u0000 in the arguments */
	IK001: 422,
	IK008: 400,
};

export const sendProblems: ErrorRequestHandler =
	(error: unknown, _request, response, next) => {
		if (response.headersSent)
			return next(error);
		send(response, toProblem(error));
	};

function send(response: Response, problem: Problem): void {
	response.writeHead(problem.status, {
		"Content-Type": "application/problem+json", ...problem.headers,
	});
	response.end(JSON.stringify(problem.body()));
}

function toProblem(error: unknown): Problem {
	if (error instanceof Problem)
		return error;
	if (error instanceof Unreachable)
		return new Problem(503, "Nothing was recorded here now. Repeat the"
			+ " same request with the same key.", { headers: retryAfter(1) });

	const code = sqlState(error);
	const status = STATUS_OF[code ?? ""] ?? statusOfParser(error);
	if (status === undefined || !(error instanceof Error)) {
		console.error(error);
		return new Problem(500, "This is a fault of the server.");
	}
	return new Problem(status, withHint(error),
		code === undefined ? {} : { code });
}

/* body-parser says itself what is wrong with a body */
function statusOfParser(error: unknown): number | undefined {
	return error instanceof Error && "expose" in error && error.expose === true
		? (error as Error & { status?: number }).status : undefined;
}

function withHint(error: Error & { hint?: string }): string {
	return error.hint === undefined
		? error.message : `${error.message}. ${error.hint}`;
}
