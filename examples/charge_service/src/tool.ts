/* The tool as an agent sees it: its schema, and what each outcome says. */

import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import type { CallToolResult } from "@modelcontextprotocol/sdk/types.js";
import * as z from "zod";

import type { Outcome } from "./charge.js";

/*
 * No amount, no key, no decision: what a model writes must not choose how
 * much is charged, or whether once more.
 */
const argumentsOfCharge = z.strictObject({
	invoice: z.string().regex(/^[A-Za-z0-9_-]{1,64}$/)
		.describe("The invoice's number, for example inv_5512"),
});

const description = "Charge an invoice to the customer's card. An invoice is"
	+ " charged at most once, so the same call may be repeated after a"
	+ " time-out or a lost connection. Do what the answer says; never try to"
	+ " get the same effect in another way.";

/** A server with the one tool; charge does the work. */
export function mcpServer(
	charge: (invoice: string) => Promise<Outcome>,
): McpServer {
	const server = new McpServer({ name: "charge-service", version: "1.0.0" });
	server.registerTool("charge", {
		description,
		inputSchema: argumentsOfCharge,
		annotations: {
			readOnlyHint: false,
			destructiveHint: true,
			idempotentHint: true,
			openWorldHint: true,
		},
	}, async ({ invoice }) => answer(await charge(invoice)));
	return server;
}

function answer(outcome: Outcome): CallToolResult {
	return {
		content: [{ type: "text", text: tell(outcome) }],
		structuredContent: { ...outcome },
		isError: outcome.status !== "charged",
	};
}

function tell(outcome: Outcome): string {
	const { invoice } = outcome;
	switch (outcome.status) {
	case "charged":
		/* nothing here tells a repetition from the first time */
		return `Invoice ${invoice} is charged, receipt ${outcome.receipt}.`;
	case "declined":
		return `The card was declined: ${outcome.reason}.`
			+ " Do not try again, unless the customer decides so anew.";
	case "in_progress":
		return `Invoice ${invoice} is being charged by another call. Make`
			+ ` the same call again in ${outcome.retry_after} s to hear the`
			+ " outcome.";
	case "try_later":
		return "There is no answer yet; it may or may not be charged. Make the"
			+ ` same call again in ${outcome.retry_after} s: it does not charge`
			+ " twice. Do not try in another way.";
	case "unknown":
		return `Nobody knows whether invoice ${invoice} was charged, and it is`
			+ " too late to try again. Do not try in another way; ask a person"
			+ " to look it up at the provider.";
	case "changed":
		return `Invoice ${invoice} was changed after it was charged, or while`
			+ " it was tried. Do not try again; report it to a person.";
	case "no_invoice":
		return `There is no invoice ${invoice}. Nothing was charged.`;
	}
}
