/* The service as a process of its own, over HTTP, and killed. */

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, before, test } from "node:test";

import { Bank, Gate, Service, until } from "../../common/testing.js";
import { connect, invoices } from "../src/db.js";

const SERVE = "dist/charge_service/src/serve.js";
const { pool, db } = connect("charge_test");
let bank: Bank;
let service: Service;

const start = (provider: string, env: Record<string, string> = {}) =>
	Service.start(process.execPath, [SERVE],
		{ PROVIDER_URL: provider, ...env });

before(async () => {
	/* as in schema.sql, with a lease that one can wait for */
	await pool.query(`SELECT idem_register('charge', effect => 'write',
		reservation_ttl => '2 s', takeover => '20 h')`);
	bank = await Bank.start();
	service = await start(bank.url);
});

after(async () => {
	await service.stop();
	await bank.stop();
	await pool.end();
});

async function newInvoice(): Promise<string> {
	const id = `inv_${randomUUID()}`;
	await db.insert(invoices).values({ id, amount_cents: 4200 });
	return id;
}

async function post(url: string, body: unknown) {
	const response = await fetch(url, {
		method: "POST", body: JSON.stringify(body),
	});
	return {
		status: response.status,
		retryAfter: response.headers.get("Retry-After"),
		body: await response.json() as Record<string, unknown>,
	};
}

const chargeOf = (invoice: string, at = service) =>
	post(`${at.url}/charges`, { invoice });

test("a charge is answered 200, and the same again", async () => {
	const invoice = await newInvoice();
	const first = await chargeOf(invoice);
	assert.equal(first.status, 200);
	assert.deepEqual(await chargeOf(invoice), first);
	assert.deepEqual(bank.count("invoice", invoice),
		{ effects: 1, repeats: 0 });
});

test("a declined card is answered 402, a decision starts anew", async () => {
	const invoice = await newInvoice();
	const decide = (decision: number) =>
		post(`${service.url}/decisions`, { invoice, decision });
	assert.equal((await decide(2)).status, 409);
	await bank.next("declined");
	assert.equal((await chargeOf(invoice)).status, 402);
	assert.equal((await chargeOf(invoice)).status, 402);
	assert.equal((await decide(2)).status, 200);
	assert.equal((await chargeOf(invoice)).status, 200);
	assert.equal(bank.ledger("invoice", invoice)[0]?.key,
		`charge:${invoice}:2`);
});

test("what is not asked properly is refused", async () => {
	const { url } = service;
	const invoice = await newInvoice();
	assert.equal((await chargeOf("inv_none")).status, 404);
	for (const body of [{}, { invoice, amount_cents: 1 }, { invoice: 1 }, []])
		assert.equal((await post(`${url}/charges`, body)).status, 400);
	assert.equal((await post(`${url}/decisions`, { invoice })).status, 400);
	assert.equal((await post(`${url}/nothing`, {})).status, 404);
	assert.equal(bank.count("invoice", invoice).effects, 0);
});

test("without the database the answer is 503, and no charge", async () => {
	const invoice = await newInvoice();
	const lonely = await start(bank.url, { PGPORT: "1" });
	try {
		const answer = await chargeOf(invoice, lonely);
		assert.equal(answer.status, 503);
		assert.equal(answer.retryAfter, "1");
	} finally {
		await lonely.stop();
	}
	assert.equal(bank.count("invoice", invoice).effects, 0);
});

test("a service killed after the charge leaves it to the next", async () => {
	const invoice = await newInvoice();
	const gate = await Gate.start(bank);
	const victim = await start(gate.url);
	try {
		const lost = chargeOf(invoice, victim);
		lost.catch(() => {});
		await until("the charge",
			() => bank.ledger("invoice", invoice).length > 0);

		const busy = await chargeOf(invoice);
		assert.equal(busy.status, 409);
		assert.match(busy.retryAfter ?? "", /^[12]$/);
		await victim.stop("SIGKILL");
		await assert.rejects(lost);
	} finally {
		await victim.stop();
		await gate.stop();
	}

	await until("the end of the lease",
		async () => (await chargeOf(invoice)).status === 200);
	assert.deepEqual(bank.count("invoice", invoice),
		{ effects: 1, repeats: 1 });
});

test("a service that is asked to stop ends its charges first", async () => {
	const invoice = await newInvoice();
	const gate = await Gate.start(bank);
	const leaving = await start(gate.url);
	try {
		const answer = chargeOf(invoice, leaving);
		await until("the charge",
			() => bank.ledger("invoice", invoice).length > 0);
		const stopped = leaving.stop("SIGTERM");
		gate.letThrough();
		assert.equal((await answer).status, 200);
		await stopped;
		assert.equal(leaving.process.exitCode, 0);
	} finally {
		await leaving.stop();
		await gate.stop();
	}
	assert.equal((await chargeOf(invoice)).status, 200);
	assert.deepEqual(bank.count("invoice", invoice),
		{ effects: 1, repeats: 0 });
});
