/* Ask the provider to act; tell apart the four ways this can end. */

/** The request never left: certainly no effect. */
export class NotSent extends Error {}

/** The provider has decided, and said no: certainly no effect. */
export class Refused extends Error {
	constructor(readonly reason: string) {
		super(`refused by the provider: ${reason}`);
	}
}

/** No answer, or one that decides nothing: maybe an effect. */
export class Unanswered extends Error {}

const NEVER_CONNECTED = [
	"ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH",
	"UND_ERR_CONNECT_TIMEOUT",
];

export interface Provider {
	url: string;
	timeout: number;			/* milliseconds; well below the lease */
}

/** Return the receipt's number, or throw one of the above. */
export async function ask(
	provider: Provider, action: string, request: object, key: string,
): Promise<string> {
	let status: number;
	let body: { number?: unknown; error?: unknown } | null;
	try {
		const response = await fetch(`${provider.url}/${action}`, {
			method: "POST",
			headers: {
				"Content-Type": "application/json",
				"Idempotency-Key": key,
			},
			body: JSON.stringify(request),
			signal: AbortSignal.timeout(provider.timeout),
		});
		status = response.status;
		body = await response.json() as typeof body;
	} catch (error) {
		throw neverConnected(error)
			? new NotSent("no connection", { cause: error })
			: new Unanswered("no answer", { cause: error });
	}

	if (status === 402)
		throw new Refused(String(body?.error));
	if (status !== 200 || typeof body?.number !== "string")
		throw new Unanswered(`HTTP status ${status}`);
	return body.number;
}

function neverConnected(error: unknown): boolean {
	const cause = error instanceof Error ? error.cause : undefined;
	return cause instanceof Error && "code" in cause
		&& NEVER_CONNECTED.includes(String(cause.code));
}
