/* The same over HTTP, for programs and for the customer's own decision. */

import {
	createServer, type IncomingMessage, type Server, type ServerResponse,
} from "node:http";
import { json } from "node:stream/consumers";

import * as z from "zod";

import type { Provider } from "../../common/provider.js";
import { charge, decide, type Outcome } from "./charge.js";
import type { Database } from "./db.js";

const Invoice = z.strictObject({ invoice: z.string() });
const Decision = z.strictObject({
	invoice: z.string(),
	decision: z.int32().min(2),
});

const STATUS: Record<Outcome["status"], number> = {
	charged: 200,
	declined: 402,
	no_invoice: 404,
	in_progress: 409,
	unknown: 409,
	changed: 422,
	try_later: 503,
};

/** POST /charges {invoice}, POST /decisions {invoice, decision} */
export function httpServer(database: Database, provider: Provider): Server {
	return createServer((request, response) => {
		answer(database, provider, request, response).catch((error) => {
			console.error(error);
			send(response, 500, { status: "error" });
		});
	});
}

async function answer(
	database: Database, provider: Provider,
	request: IncomingMessage, response: ServerResponse,
): Promise<void> {
	const body = await json(request).catch(() => undefined);
	const invoice = Invoice.safeParse(body).data;
	const decision = Decision.safeParse(body).data;

	switch (`${request.method} ${request.url}`) {
	case "POST /charges":
		if (invoice === undefined)
			return send(response, 400, { status: "bad_request" });
		return tell(response,
			await charge(database, provider, invoice.invoice));
	case "POST /decisions":
		if (decision === undefined)
			return send(response, 400, { status: "bad_request" });
		return await decide(database, decision.invoice, decision.decision)
			? send(response, 200, { status: "decided", ...decision })
			: send(response, 409, { status: "not_failed", ...decision });
	default:
		return send(response, 404, { status: "not_found" });
	}
}

function tell(response: ServerResponse, outcome: Outcome): void {
	if ("retry_after" in outcome)
		response.setHeader("Retry-After", outcome.retry_after);
	send(response, STATUS[outcome.status], outcome);
}

function send(response: ServerResponse, status: number, body: object): void {
	response.writeHead(status, { "Content-Type": "application/json" });
	response.end(JSON.stringify(body));
}
