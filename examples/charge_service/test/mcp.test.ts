/* The tool as an agent has it, by the client of the official SDK. */

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, before, test } from "node:test";

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import {
	StdioClientTransport,
} from "@modelcontextprotocol/sdk/client/stdio.js";
import { InMemoryTransport } from "@modelcontextprotocol/sdk/inMemory.js";
import type { CallToolResult } from "@modelcontextprotocol/sdk/types.js";

import { Bank, Gate, until } from "../../common/testing.js";
import type { Outcome } from "../src/charge.js";
import { connect, invoices } from "../src/db.js";
import { mcpServer } from "../src/tool.js";

const MCP = "dist/charge_service/src/mcp.js";
const { pool, db } = connect("charge_test");
let bank: Bank;
let agent: Client;

before(async () => {
	await pool.query(`SELECT idem_register('charge', effect => 'write',
		reservation_ttl => '2 s', takeover => '20 h')`);
	bank = await Bank.start();
	agent = await connectAgent(bank.url);
});

after(async () => {
	await agent.close();
	await bank.stop();
	await pool.end();
});

function transport(url: string): StdioClientTransport {
	const env = Object.fromEntries(Object.entries(process.env)
		.filter((entry): entry is [string, string] => entry[1] !== undefined));
	return new StdioClientTransport({
		command: process.execPath, args: [MCP],
		env: { ...env, PROVIDER_URL: url },
	});
}

async function connectAgent(url: string): Promise<Client> {
	const client = new Client({ name: "test", version: "1.0.0" });
	await client.connect(transport(url));
	return client;
}

async function newInvoice(): Promise<string> {
	const id = `inv_${randomUUID()}`;
	await db.insert(invoices).values({ id, amount_cents: 4200 });
	return id;
}

async function call(args: Record<string, unknown>, client = agent) {
	return await client.callTool({ name: "charge", arguments: args }) as
		CallToolResult;
}

function textOf(result: CallToolResult): string {
	const [first] = result.content;
	assert.equal(first?.type, "text");
	return first.text;
}

test("an agent may say which invoice, and nothing else", async () => {
	const { tools } = await agent.listTools();
	assert.deepEqual(tools.map(({ name }) => name), ["charge"]);
	const schema: Record<string, unknown> = { ...tools[0]?.inputSchema };
	delete schema["$schema"];
	assert.deepEqual(schema, {
		type: "object",
		properties: {
			invoice: {
				type: "string",
				pattern: "^[A-Za-z0-9_-]{1,64}$",
				description: "The invoice's number, for example inv_5512",
			},
		},
		required: ["invoice"],
		additionalProperties: false,
	});
	assert.deepEqual(tools[0]?.annotations, {
		readOnlyHint: false, destructiveHint: true,
		idempotentHint: true, openWorldHint: true,
	});
});

test("an agent that calls twice has charged once", async () => {
	const invoice = await newInvoice();
	const first = await call({ invoice });
	assert.equal(first.isError, false);
	assert.match(textOf(first), /is charged.*charges_0/);
	assert.deepEqual(await call({ invoice }), first);
	assert.deepEqual(bank.count("invoice", invoice),
		{ effects: 1, repeats: 0 });
});

test("an agent cannot choose the amount or the key", async () => {
	const invoice = await newInvoice();
	for (const more of [
		{ amount_cents: 1 }, { decision: 2 }, { idempotency_key: "again" },
	]) {
		const result = await call({ invoice, ...more });
		assert.equal(result.isError, true);
		assert.match(textOf(result), /unrecognized key/i);
	}
	assert.equal((await call({ invoice: "inv_1:2" })).isError, true);
	assert.equal((await call({})).isError, true);
	assert.deepEqual(bank.count("invoice", invoice),
		{ effects: 0, repeats: 0 });
});

test("an agent hears of a declined card, and not to go on", async () => {
	const invoice = await newInvoice();
	await bank.next("declined");
	for (let i = 0; i < 2; i++) {
		const result = await call({ invoice });
		assert.equal(result.isError, true);
		assert.match(textOf(result), /declined.*Do not try again/);
	}
	assert.equal(bank.count("invoice", invoice).effects, 0);
});

test("after a lost answer the agent is told to call again", async () => {
	const invoice = await newInvoice();
	await bank.next("lost");
	const first = await call({ invoice });
	assert.equal(first.isError, true);
	assert.match(textOf(first), /same call again in 1 s/);
	assert.equal((await call({ invoice })).isError, false);
	assert.deepEqual(bank.count("invoice", invoice),
		{ effects: 1, repeats: 1 });
});

test("a server killed after the charge is no second charge", async () => {
	const invoice = await newInvoice();
	const gate = await Gate.start(bank);
	const stdio = transport(gate.url);
	const unlucky = new Client({ name: "test", version: "1.0.0" });
	try {
		await unlucky.connect(stdio);
		const lost = call({ invoice }, unlucky);
		lost.catch(() => {});
		await until("the charge",
			() => bank.ledger("invoice", invoice).length > 0);
		assert.ok(stdio.pid !== null);
		process.kill(stdio.pid, "SIGKILL");
		await assert.rejects(lost);

		const busy = await call({ invoice });
		assert.equal(busy.isError, true);
		assert.match(textOf(busy), /another call.*same call again in [12] s/);
	} finally {
		await unlucky.close();
		await gate.stop();
	}

	await until("the end of the lease",
		async () => (await call({ invoice })).isError === false);
	assert.deepEqual(bank.count("invoice", invoice),
		{ effects: 1, repeats: 1 });
});

/* what the agent is told for each outcome, whatever has led to it */
const TOLD: [Outcome, boolean, RegExp][] = [
	[{ status: "charged", invoice: "i", receipt: "r_1" }, false,
		/is charged, receipt r_1/],
	[{ status: "declined", invoice: "i", decision: 1, reason: "no" }, true,
		/unless the customer decides/],
	[{ status: "in_progress", invoice: "i", retry_after: 7 }, true,
		/same call again in 7 s/],
	[{ status: "try_later", invoice: "i", retry_after: 2 }, true,
		/same call again in 2 s/],
	[{ status: "unknown", invoice: "i" }, true, /ask a person/],
	[{ status: "changed", invoice: "i" }, true, /report it to a person/],
	[{ status: "no_invoice", invoice: "i" }, true, /no invoice i/],
];

for (const [outcome, isError, text] of TOLD)
	test(`an agent is told what to do: ${outcome.status}`, async () => {
		const server = mcpServer(async () => outcome);
		const client = new Client({ name: "test", version: "1.0.0" });
		const [here, there] = InMemoryTransport.createLinkedPair();
		await server.connect(there);
		await client.connect(here);
		const result = await call({ invoice: "i" }, client);
		await client.close();
		assert.equal(result.isError, isError);
		assert.match(textOf(result), text);
		assert.deepEqual(result.structuredContent, { ...outcome });
	});
