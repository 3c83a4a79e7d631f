/* The charge itself: every way it can end, counted in the bank's ledger. */

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, before, test } from "node:test";

import { sql } from "drizzle-orm";

import { Idem, sqlState } from "../../common/idem.js";
import { ask, type Provider } from "../../common/provider.js";
import { Bank, Gate, until } from "../../common/testing.js";
import { charge, chargeKey, decide, type Outcome } from "../src/charge.js";
import { connect, invoices } from "../src/db.js";

const database = connect("charge_test");
const { pool, db } = database;
let bank: Bank;
let settings: Provider;

before(async () => {
	bank = await Bank.start("--late", "1");
	settings = { url: bank.url, timeout: 10_000 };
});

after(async () => {
	await bank.stop();
	await pool.end();
});

/* other times than those of schema.sql, as long as the test runs */
async function withTimes(
	lease: string, takeover: string, run: () => Promise<void>,
): Promise<void> {
	const register = (...times: string[]) => pool.query(
		`SELECT idem_register('charge', effect => 'write',
			reservation_ttl => $1, takeover => $2)`, times);
	await register(lease, takeover);
	try {
		await run();
	} finally {
		await register("30 s", "20 h");
	}
}

async function newInvoice(amount_cents = 4200): Promise<string> {
	const id = `inv_${randomUUID()}`;
	await db.insert(invoices).values({ id, amount_cents });
	return id;
}

const chargeOnce = (id: string) => charge(database, settings, id);

/* as an agent that does what it is told */
async function chargeUntilDecided(id: string): Promise<Outcome> {
	let outcome = await chargeOnce(id);
	await until(`the outcome of ${id}`, async () => {
		if (outcome.status !== "in_progress" && outcome.status !== "try_later")
			return true;
		outcome = await chargeOnce(id);
		return false;
	});
	return outcome;
}

async function lookup(key: string): Promise<Record<string, unknown>> {
	const { rows } = await pool.query(
		`SELECT status, attempt, maybe_ran, expires_at = 'infinity' AS for_ever
		   FROM idem_lookup($1)`, [key]);
	return rows[0] ?? {};
}

test("a charge happens once and is remembered for ever", async () => {
	const id = await newInvoice(1999);
	const first = await chargeOnce(id);
	assert.equal(first.status, "charged");
	assert.deepEqual(await chargeOnce(id), first);

	assert.deepEqual(bank.count("invoice", id), { effects: 1, repeats: 0 });
	const [line] = bank.ledger("invoice", id);
	assert.equal(line?.key, `charge:${id}`);
	assert.deepEqual(line?.body,
		{ invoice: id, amount_cents: 1999, currency: "EUR" });
	assert.deepEqual(await lookup(chargeKey(id, 1)),
		{ status: "done", attempt: 1, maybe_ran: false, for_ever: true });
});

test("fifty at once are one charge and one receipt", async () => {
	const id = await newInvoice();
	const outcomes = await Promise.all(
		Array.from({ length: 50 }, () => chargeUntilDecided(id)));
	assert.equal(outcomes[0]?.status, "charged");
	for (const outcome of outcomes)
		assert.deepEqual(outcome, outcomes[0]);
	assert.deepEqual(bank.count("invoice", id), { effects: 1, repeats: 0 });
});

test("while one call is at it, another is told how long", async () => {
	const id = await newInvoice();
	const gate = await Gate.start(bank);
	try {
		const first = charge(database, { ...settings, url: gate.url }, id);
		await until("the charge", () => bank.ledger("invoice", id).length > 0);

		const second = await chargeOnce(id);
		assert.equal(second.status, "in_progress");
		assert.ok("retry_after" in second);
		assert.ok(second.retry_after >= 1 && second.retry_after <= 30);

		gate.letThrough();
		assert.equal((await first).status, "charged");
		assert.deepEqual(await chargeOnce(id), await first);
	} finally {
		await gate.stop();
	}
	assert.deepEqual(bank.count("invoice", id), { effects: 1, repeats: 0 });
});

for (const fate of ["lost", "late"] as const)
	test(`an answer that is ${fate} is no second charge`, async () => {
		const id = await newInvoice();
		await bank.next(fate);
		const first =
			await charge(database, { ...settings, timeout: 500 }, id);
		assert.equal(first.status, "try_later");
		assert.equal((await lookup(chargeKey(id, 1)))["status"], "expired");

		assert.equal((await chargeOnce(id)).status, "charged");
		assert.deepEqual(bank.count("invoice", id),
			{ effects: 1, repeats: 1 });
		const keys = bank.ledger("invoice", id).map(({ key }) => key);
		assert.equal(keys[0], keys[1]);
	});

test("a provider that is down has decided nothing", async () => {
	const id = await newInvoice();
	await bank.next("unavailable");
	assert.equal((await chargeOnce(id)).status, "try_later");
	assert.deepEqual(bank.count("invoice", id), { effects: 0, repeats: 0 });
	assert.equal((await chargeOnce(id)).status, "charged");
	assert.deepEqual(bank.count("invoice", id), { effects: 1, repeats: 0 });
});

test("what was never sent frees the key", async () => {
	const id = await newInvoice();
	const gone = await Bank.start();
	await gone.stop();
	const outcome = await charge(database, { ...settings, url: gone.url }, id);
	assert.equal(outcome.status, "try_later");
	const { status, maybe_ran } = await lookup(chargeKey(id, 1));
	assert.deepEqual({ status, maybe_ran },
		{ status: "released", maybe_ran: false });
	assert.equal((await chargeOnce(id)).status, "charged");
});

test("a declined card is charged again on a new decision only", async () => {
	const id = await newInvoice();
	assert.equal(await decide(database, id, 2), false);

	await bank.next("declined");
	const declined = await chargeOnce(id);
	assert.deepEqual(declined, {
		status: "declined", invoice: id, decision: 1,
		reason: "declined",
	});
	assert.deepEqual(await chargeOnce(id), declined);
	assert.deepEqual(bank.count("invoice", id), { effects: 0, repeats: 0 });

	assert.equal(await decide(database, id, 3), false);
	assert.deepEqual(
		await Promise.all([1, 2, 3].map(() => decide(database, id, 2))),
		[true, true, true]);
	assert.equal((await chargeOnce(id)).status, "charged");
	assert.equal(bank.ledger("invoice", id)[0]?.key, `charge:${id}:2`);

	/* and no third one: the second has not failed */
	assert.equal(await decide(database, id, 3), false);
	assert.equal((await chargeOnce(id)).status, "charged");
	assert.deepEqual(bank.count("invoice", id), { effects: 1, repeats: 0 });
	assert.equal((await lookup(chargeKey(id, 1)))["for_ever"], true);
});

test("nobody decides while the outcome is open", async () => {
	const id = await newInvoice();
	await bank.next("lost");
	assert.equal((await chargeOnce(id)).status, "try_later");
	assert.equal(await decide(database, id, 2), false);
});

test("an invoice that was changed is not charged again", async () => {
	const id = await newInvoice();
	assert.equal((await chargeOnce(id)).status, "charged");
	await db.update(invoices).set({ amount_cents: 1 })
		.where(sql`id = ${id}`);
	assert.deepEqual(await chargeOnce(id), { status: "changed", invoice: id });
	assert.deepEqual(bank.count("invoice", id), { effects: 1, repeats: 0 });
});

test("what is no invoice is not charged", async () => {
	const outcome = await chargeOnce("inv_none");
	assert.deepEqual(outcome, { status: "no_invoice", invoice: "inv_none" });
	assert.equal(bank.count("invoice", "inv_none").effects, 0);
});

test("an id cannot look like another invoice's second decision", async () => {
	await assert.rejects(
		db.insert(invoices).values({ id: "inv_1:2", amount_cents: 1 }),
		(error) => sqlState(error) === "23514");
});

test("a lost connection after the charge does not lose it", async () => {
	const id = await newInvoice();
	const gate = await Gate.start(bank);
	const victim = connect("charge_victim");
	try {
		const outcome = charge(victim, { ...settings, url: gate.url }, id);
		await until("the charge", () => bank.ledger("invoice", id).length > 0);
		const { rowCount } = await pool.query(
			`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			  WHERE application_name = 'charge_victim'`);
		assert.equal(rowCount, 1);
		gate.letThrough();
		assert.equal((await outcome).status, "charged");
	} finally {
		await gate.stop();
		await victim.pool.end();
	}
	assert.equal((await chargeOnce(id)).status, "charged");
	assert.deepEqual(bank.count("invoice", id), { effects: 1, repeats: 0 });
});

/* the pool, but the connection breaks right after this call has committed */
function losing(call: string): { idem: Idem; lost: () => number } {
	let lost = 0;
	const idem = new Idem({
		query: async (text, values) => {
			const answer = await pool.query(text, values);
			if (text.includes(call) && lost++ === 0)
				throw new Error("Connection terminated unexpectedly");
			return answer;
		},
	});
	return { idem, lost: () => lost };
}

for (const [call, fate] of
	[["idem_complete", "ok"], ["idem_fail", "declined"]] as const)
	test(`an answer to ${call} that is lost does no harm`, async () => {
		const id = await newInvoice();
		const { idem, lost } = losing(call);
		await bank.next(fate);
		const first = await charge({ ...database, idem }, settings, id);
		assert.equal(lost(), 2);
		assert.equal(first.status, fate === "ok" ? "charged" : "declined");
		assert.deepEqual(await chargeOnce(id), first);
		assert.deepEqual(bank.count("invoice", id),
			{ effects: fate === "ok" ? 1 : 0, repeats: 0 });
	});

test("an answer to idem_begin that is lost is no charge yet", () =>
	withTimes("1 s", "1 h", async () => {
		const id = await newInvoice();
		const { idem } = losing("idem_begin");
		const first = await charge({ ...database, idem }, settings, id);
		assert.equal(first.status, "try_later");
		assert.deepEqual(bank.count("invoice", id),
			{ effects: 0, repeats: 0 });

		/* nobody knows of that reservation, but it ends by itself */
		assert.equal((await chargeOnce(id)).status, "in_progress");
		assert.equal((await chargeUntilDecided(id)).status, "charged");
		assert.deepEqual(bank.count("invoice", id),
			{ effects: 1, repeats: 0 });
	}));

test("without the database there is no charge", async () => {
	const id = await newInvoice();
	const closed = connect("charge_closed");
	await closed.pool.end();
	const outcome = await charge(closed, settings, id);
	assert.equal(outcome.status, "try_later");
	assert.deepEqual(bank.count("invoice", id), { effects: 0, repeats: 0 });
});

test("after the lease another call takes over, with the same key", () =>
	withTimes("300 ms", "1 h", async () => {
		const id = await newInvoice();
		const gate = await Gate.start(bank);
		try {
			const slow = charge(database, { ...settings, url: gate.url }, id);
			await until("the charge",
				() => bank.ledger("invoice", id).length > 0);
			const fast = await chargeUntilDecided(id);
			assert.equal(fast.status, "charged");

			/* the first one has lost the key, and is told to ask again */
			gate.letThrough();
			assert.equal((await slow).status, "in_progress");
			assert.deepEqual(await chargeOnce(id), fast);
		} finally {
			await gate.stop();
		}
		assert.deepEqual(bank.count("invoice", id),
			{ effects: 1, repeats: 1 });
	}));

test("nobody charges again when the provider may have forgotten", () =>
	withTimes("30 s", "500 ms", async () => {
		const id = await newInvoice();
		const forgetful = await Bank.start("--window", "1");
		const there = { ...settings, url: forgetful.url };
		try {
			await forgetful.next("lost");
			const lost = await charge(database, there, id);
			assert.equal(lost.status, "try_later");
			await until("the end of the provider's window", () => longAgo(id));

			const outcome = await charge(database, there, id);
			assert.deepEqual(outcome, { status: "unknown", invoice: id });
			assert.equal(await decide(database, id, 2), false);
			assert.deepEqual(forgetful.count("invoice", id),
				{ effects: 1, repeats: 0 });

			/* it has forgotten indeed: this is what must not happen */
			await ask(there, "charges", { invoice: id }, `charge:${id}`);
			assert.deepEqual(forgetful.count("invoice", id),
				{ effects: 2, repeats: 0 });
		} finally {
			await forgetful.stop();
		}

		/* a person has looked it up, and everybody hears what was found */
		const found: Outcome =
			{ status: "charged", invoice: id, receipt: "charges_0001" };
		await pool.query("SELECT idem_resolve($1, 'done', $2)",
			[chargeKey(id, 1), JSON.stringify(found)]);
		assert.deepEqual(await chargeOnce(id), found);
	}));

async function longAgo(id: string): Promise<boolean> {
	const { rows } = await pool.query(
		`SELECT clock_timestamp() > created_at + '1500 ms' AS over
		   FROM idem_lookup($1)`, [chargeKey(id, 1)]);
	return rows[0].over;
}

test("inside a transaction of drizzle there is no reservation", async () => {
	await assert.rejects(
		db.transaction((tx) => tx.execute(
			sql`SELECT * FROM idem_begin('charge', '{}', 'charge:tx')`)),
		(error) => sqlState(error) === "25001");
	assert.deepEqual(await lookup("charge:tx"), {});
});
