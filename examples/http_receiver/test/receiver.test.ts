/* The receiver over HTTP: every way it can end, counted in the ledger. */

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import type { Server } from "node:http";
import { connect as dial, type AddressInfo } from "node:net";
import { after, before, test } from "node:test";

import { ask } from "../../common/provider.js";
import { Bank, Gate, Service, until } from "../../common/testing.js";
import { createApp } from "../src/app.js";
import { connect } from "../src/db.js";
import { settlement, type Attempt } from "../src/idempotent.js";
import { tools, type Tools } from "../src/tools.js";

const SERVE = "dist/http_receiver/src/serve.js";
const pool = connect("receiver_test");
const ALICE = randomUUID();
const BOB = randomUUID();
const nameOf = (token: string) => `client_${token.slice(0, 8)}`;

let bank: Bank;
let base: string;
const servers: Server[] = [];

before(async () => {
	for (const token of [ALICE, BOB])
		await pool.query(
			"INSERT INTO clients VALUES ($1, sha256(convert_to($2, 'UTF8')))",
			[nameOf(token), token]);
	bank = await Bank.start("--late", "1");
	base = await listen(toolsAt(bank.url));
});

after(async () => {
	for (const server of servers) {
		server.close();
		server.closeAllConnections();
	}
	await bank.stop();
	await pool.end();
});

const toolsAt = (url: string, timeout = 10_000) => tools({ url, timeout });

async function listen(these: Tools, db = pool): Promise<string> {
	const server = createApp(db, these).listen(0, "127.0.0.1");
	await once(server, "listening");
	servers.push(server);
	return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

interface Answer {
	status: number;
	headers: Record<string, string>;
	text: string;
}

interface Options {
	key?: string;
	headers?: Record<string, string>;
	token?: string;
	at?: string;
	tool?: string;
}

async function post(
	args: unknown,
	{ key, headers = {}, token = ALICE, at = base, tool = "charge" }: Options,
): Promise<Answer> {
	const response = await fetch(`${at}/tools/${tool}`, {
		method: "POST",
		headers: {
			"Authorization": `Bearer ${token}`,
			"Content-Type": "application/json",
			...key === undefined ? {} : { "Idempotency-Key": `"${key}"` },
			...headers,
		},
		body: typeof args === "string" ? args : JSON.stringify(args),
	});
	const answer = {
		status: response.status,
		headers: Object.fromEntries(response.headers),
		text: await response.text(),
	};
	if (answer.status >= 400)
		assertProblem(answer);
	return answer;
}

function assertProblem({ status, headers, text }: Answer): void {
	assert.equal(headers["content-type"], "application/problem+json");
	const problem = JSON.parse(text) as Record<string, unknown>;
	assert.equal(problem["status"], status);
	assert.equal(typeof problem["title"], "string");
	assert.equal(typeof problem["detail"], "string");
}

const codeOf = ({ text }: Answer) =>
	(JSON.parse(text) as { code?: string }).code;

/* the same to the last byte, and to the last header but those of the moment */
function assertReplay(replay: Answer, first: Answer): void {
	assert.equal(replay.headers["idempotent-replayed"], "true");
	const lasting = ({ headers, ...answer }: Answer) => {
		const { date, "idempotent-replayed": _, ...rest } = headers;
		assert.ok(date !== undefined);
		return { ...answer, headers: rest };
	};
	assert.deepEqual(lasting(replay), lasting(first));
}

/* as a client that does what it is told */
async function postUntilFinal(
	args: unknown, options: Options,
): Promise<Answer> {
	let answer = await post(args, options);
	await until("a final answer", async () => {
		if (answer.headers["retry-after"] === undefined)
			return true;
		answer = await post(args, options);
		return false;
	});
	return answer;
}

const newCall = () => ({
	key: randomUUID(),
	args: { customer: `cus_${randomUUID()}`, amount_cents: 4200 },
});

const count = (args: { customer: string }) =>
	bank.count("customer", args.customer);

const acted = ({ customer }: { customer: string }) =>
	until("the charge", () => bank.ledger("customer", customer).length > 0);

async function lookup(key: string): Promise<Record<string, unknown>> {
	const { rows } = await pool.query(
		`SELECT status, attempt, maybe_ran,
		        extract(epoch FROM expires_at - completed_at)::int / 3600
		            AS hours
		   FROM idem_lookup($1, $2)`, [key, nameOf(ALICE)]);
	return rows[0] ?? {};
}

/* other times than those of schema.sql, as long as the test runs */
async function withTimes(
	lease: string, takeover: string, run: () => Promise<void>,
): Promise<void> {
	const register = (...times: string[]) => pool.query(
		`SELECT idem_register('charge', effect => 'write',
			reservation_ttl => $1, takeover => $2,
			result_ttl => '24 hours')`, times);
	await register(lease, takeover);
	try {
		await run();
	} finally {
		await register("30 seconds", "20 hours");
	}
}

test("a repetition gets the same answer to the last byte", async () => {
	const { key, args } = newCall();
	const first = await post(args, { key });
	assert.equal(first.status, 201);
	assert.match(first.headers["location"] ?? "", /^\/receipts\/charges_0/);
	assert.equal(first.headers["idempotent-replayed"], undefined);

	assertReplay(await post(args, { key }), first);
	/* the members in another order are the same request */
	const { customer, amount_cents } = args;
	assertReplay(await post({ amount_cents, customer }, { key }), first);
	assert.deepEqual(count(args), { effects: 1, repeats: 0 });
	assert.deepEqual(await lookup(key),
		{ status: "done", attempt: 1, maybe_ran: false, hours: 24 });
});

test("a write without a key is refused", async () => {
	const { args } = newCall();
	const answer = await post(args, {});
	assert.equal(answer.status, 400);
	assert.equal(codeOf(answer), "IK008");
	assert.deepEqual(count(args), { effects: 0, repeats: 0 });
});

test("a read needs no key, and repeats itself", async () => {
	for (let i = 0; i < 2; i++) {
		const answer = await post({ amount_cents: 1001 }, { tool: "quote" });
		assert.equal(answer.status, 200);
		assert.equal(answer.text, '{"fee_cents":26}');
		assert.equal(answer.headers["idempotent-replayed"], undefined);
	}
});

for (const [what, field] of Object.entries({
	"an unfinished string": '"abc',
	"an empty string": '""',
	"a blank string": '"  "',
	"a number of keys": '"abc", "def"',
	"bare keys": "abc, def",
	"a parameter": '"abc"; a=1',
	"a wrong escape": '"a\\bc"',
	"what is not ASCII": '"caf\u00e9"',
	"more than 1024 bytes": `"${"x".repeat(1025)}"`,
}))
	test(`no key is ${what}`, async () => {
		const { args } = newCall();
		const headers = { "Idempotency-Key": field };
		assert.equal((await post(args, { headers })).status, 400);
		assert.deepEqual(count(args), { effects: 0, repeats: 0 });
	});

test("a key in quotes and a bare one are the same", async () => {
	const { key, args } = newCall();
	const first = await post(args, { key });
	const bare = await post(args, { headers: { "Idempotency-Key": key } });
	assertReplay(bare, first);
	assert.deepEqual(count(args), { effects: 1, repeats: 0 });
});

test("quotes and backslashes within a key are escaped", async () => {
	const { key, args } = newCall();
	const first = await post(args, { key: `${key} \\"\\\\` });
	assert.equal(first.status, 201);
	const argument = { ...args, idempotency_key: `${key} "\\` };
	assertReplay(await post(argument, {}), first);
	assert.deepEqual(count(args), { effects: 1, repeats: 0 });
});

test("the argument is a key as well, and no part of the request", async () => {
	const { key, args } = newCall();
	const first = await post({ ...args, idempotency_key: key }, {});
	assert.equal(first.status, 201);
	assertReplay(await post(args, { key }), first);
	assertReplay(await post({ ...args, idempotency_key: key }, { key }), first);
	assert.deepEqual(count(args), { effects: 1, repeats: 0 });
	assert.deepEqual(bank.ledger("customer", args.customer)[0]?.body, args);
});

test("two keys, or one that is none, are refused", async () => {
	const { key, args } = newCall();
	for (const idempotency_key of ["other", "", " ", "a\nb", 7, null, {}]) {
		const options = idempotency_key === "other" ? { key } : {};
		const answer = await post({ ...args, idempotency_key }, options);
		assert.equal(answer.status, 400);
	}
	assert.deepEqual(count(args), { effects: 0, repeats: 0 });
});

test("turn, tool and arguments make a key", async () => {
	const { args } = newCall();
	const inTurn = (turn: string) =>
		({ headers: { "Conversation-Turn": turn } });
	const first = await post(args, inTurn("turn-19"));
	assert.equal(first.status, 201);
	assertReplay(await post(args, inTurn("turn-19")), first);
	assert.deepEqual(count(args), { effects: 1, repeats: 0 });

	/* another turn, or other arguments, are another action */
	assert.equal((await post(args, inTurn("turn-20"))).status, 201);
	const more = { ...args, amount_cents: 1 };
	assert.equal((await post(more, inTurn("turn-19"))).status, 201);
	assert.deepEqual(count(args), { effects: 3, repeats: 0 });
});

test("another request under the same key is refused", async () => {
	const { key, args } = newCall();
	const other = { ...args, amount_cents: 1 };
	const gate = await Gate.start(bank);
	try {
		const at = await listen(toolsAt(gate.url));
		const first = post(args, { key, at });
		await acted(args);
		const during = await post(other, { key });
		assert.equal(during.status, 422);
		assert.equal(codeOf(during), "IK001");
		gate.letThrough();
		assert.equal((await first).status, 201);
	} finally {
		await gate.stop();
	}
	const later = await post(other, { key });
	assert.equal(later.status, 422);
	assert.doesNotMatch(later.text, /charges_0/);
	assert.deepEqual(count(args), { effects: 1, repeats: 0 });
});

test("while one is at it, another hears 409 and when to return", async () => {
	const { key, args } = newCall();
	const gate = await Gate.start(bank);
	try {
		const at = await listen(toolsAt(gate.url));
		const first = post(args, { key, at });
		await acted(args);
		const busy = await post(args, { key });
		assert.equal(busy.status, 409);
		const seconds = Number(busy.headers["retry-after"]);
		assert.ok(seconds >= 1 && seconds <= 30);
		gate.letThrough();
		const answer = await first;
		assert.equal(answer.status, 201);
		assertReplay(await post(args, { key }), answer);
	} finally {
		await gate.stop();
	}
	assert.deepEqual(count(args), { effects: 1, repeats: 0 });
});

test("fifty at once are one charge and one answer", async () => {
	const { key, args } = newCall();
	const answers = await Promise.all(
		Array.from({ length: 50 }, () => postUntilFinal(args, { key })));
	const [first] = answers.filter(({ headers }) =>
		headers["idempotent-replayed"] === undefined);
	assert.equal(first?.status, 201);
	for (const answer of answers.filter((one) => one !== first))
		assertReplay(answer, first);
	assert.deepEqual(count(args), { effects: 1, repeats: 0 });
});

test("the keys of two clients never meet", async () => {
	const { key, args } = newCall();
	const mine = await post(args, { key });
	const other = { ...args, amount_cents: 1 };
	const theirs = await post(other, { key, token: BOB });
	assert.equal(theirs.status, 201);
	assert.equal(theirs.headers["idempotent-replayed"], undefined);
	assertReplay(await post(args, { key }), mine);

	assert.deepEqual(count(args), { effects: 2, repeats: 0 });
	assert.deepEqual(
		bank.ledger("customer", args.customer).map((line) => line.key),
		[`${nameOf(ALICE)}/${key}`, `${nameOf(BOB)}/${key}`]);
});

test("nobody without a token", async () => {
	const { key, args } = newCall();
	const answer = await post(args, { key, token: randomUUID() });
	assert.equal(answer.status, 401);
	assert.equal(answer.headers["www-authenticate"], "Bearer");
	assert.deepEqual(count(args), { effects: 0, repeats: 0 });
});

test("what cannot be read is refused, and nothing is reserved", async () => {
	const { key, args } = newCall();
	for (const body of ["{", "[]", '"text"', '{"customer":"\\u0000"}',
		'{"customer":"\\ud800"}'])
		assert.equal((await post(body, { key })).status, 400, body);
	assert.equal((await post(args, { key, tool: "nothing" })).status, 404);
	const big = { ...args, note: "x".repeat(200_000) };
	assert.equal((await post(big, { key })).status, 413);
	assert.deepEqual(await lookup(key), {});
	assert.equal((await post(args, { key })).status, 201);
});

test("a definite no is recorded and replayed", async () => {
	const { key, args } = newCall();
	await bank.next("declined");
	const first = await post(args, { key });
	assert.equal(first.status, 402);
	assertReplay(await post(args, { key }), first);
	assert.deepEqual(count(args), { effects: 0, repeats: 0 });
	assert.equal((await lookup(key))["status"], "failed");

	const wrong = { customer: args.customer, amount_cents: -1 };
	const second = randomUUID();
	const refused = await post(wrong, { key: second });
	assert.equal(refused.status, 400);
	assertReplay(await post(wrong, { key: second }), refused);
});

test("only what is final is recorded", () => {
	const verdicts = {
		complete: [200, 201, 202, 204, 303],
		fail: [400, 402, 403, 404, 410, 422],
		release: [408, 409, 425, 429],
		abandon: [500, 502, 503, 504],
	};
	for (const [verdict, statuses] of Object.entries(verdicts))
		for (const status of statuses)
			assert.equal(settlement(status), verdict, String(status));
});

for (const fate of ["lost", "late"] as const)
	test(`an answer that is ${fate} is no second charge`, async () => {
		const { key, args } = newCall();
		const at = await listen(toolsAt(bank.url, 500));
		await bank.next(fate);
		const first = await post(args, { key, at });
		assert.equal(first.status, 502);
		assert.equal(first.headers["retry-after"], "1");

		const second = await post(args, { key });
		assert.equal(second.status, 201);
		assertReplay(await post(args, { key }), second);
		assert.deepEqual(count(args), { effects: 1, repeats: 1 });
	});

test("a provider that is down has decided nothing", async () => {
	const { key, args } = newCall();
	await bank.next("unavailable");
	assert.equal((await post(args, { key })).status, 502);
	assert.equal((await post(args, { key })).status, 201);
	assert.deepEqual(count(args), { effects: 1, repeats: 0 });
});

test("what was never sent frees the key", async () => {
	const { key, args } = newCall();
	const gone = await Bank.start();
	await gone.stop();
	const at = await listen(toolsAt(gone.url));
	const answer = await post(args, { key, at });
	assert.equal(answer.status, 503);
	const { status, maybe_ran } = await lookup(key);
	assert.deepEqual({ status, maybe_ran },
		{ status: "released", maybe_ran: false });
	assert.equal((await post(args, { key })).status, 201);
});

/* a handler of the test's own, which charges and then ends like this */
async function chargeAnd(end: () => unknown) {
	const attempts: Attempt[] = [];
	const at = await listen({
		charge: async (attempt) => {
			attempts.push(attempt);
			const receipt = await ask({ url: bank.url, timeout: 10_000 },
				"charges", attempt.args, attempt.key ?? "");
			return { status: 200, body: end() ?? { receipt } };
		},
	});
	return { at, attempts };
}

const BAD_ENDS: Record<string, () => unknown> = {
	"crashes": () => { throw new TypeError("a bug of the test"); },
	"returns what is no JSON": () => 1n,
};

for (const [what, end] of Object.entries(BAD_ENDS))
	test(`a handler that ${what} leaves the outcome open`, async () => {
		const { key, args } = newCall();
		let ends = end;
		const { at, attempts } = await chargeAnd(() => ends());
		const first = await post(args, { key, at });
		assert.equal(first.status, 500);
		assert.doesNotMatch(first.text, /bug|BigInt/);

		ends = () => undefined;
		assert.equal((await post(args, { key, at })).status, 200);
		assert.deepEqual(attempts.map(({ maybeRan }) => maybeRan),
			[false, true]);
		assert.equal(attempts[0]?.key, attempts[1]?.key);
		assert.deepEqual(count(args), { effects: 1, repeats: 1 });
	});

test("a reply of any kind is replayed as it was", async () => {
	for (const body of [null, false, 0, "", [], "\u0000\ud800\u2028", 1e21]) {
		const { key, args } = newCall();
		const { at } = await chargeAnd(() => [body, { z: 1, a: 2, bb: 3 }]);
		const first = await post(args, { key, at });
		assert.equal(first.text, JSON.stringify([body, { z: 1, a: 2, bb: 3 }]));
		assertReplay(await post(args, { key, at }), first);
	}
});

test("a reply that is too large to record is no second charge", () =>
	withTimes("300 ms", "20 hours", async () => {
		const { key, args } = newCall();
		let size = 2_000_000;
		const { at } = await chargeAnd(() => "x".repeat(size));
		assert.equal((await post(args, { key, at })).status, 500);
		size = 10;
		const answer = await postUntilFinal(args, { key, at });
		assert.equal(answer.text, '"xxxxxxxxxx"');
		assert.deepEqual(count(args), { effects: 1, repeats: 1 });
	}));

test("a client that leaves does not stop what has begun", async () => {
	const { key, args } = newCall();
	const gate = await Gate.start(bank);
	try {
		const at = await listen(toolsAt(gate.url));
		const leaving = new AbortController();
		const lost = fetch(`${at}/tools/charge`, {
			method: "POST",
			headers: {
				"Authorization": `Bearer ${ALICE}`,
				"Content-Type": "application/json",
				"Idempotency-Key": `"${key}"`,
			},
			body: JSON.stringify(args),
			signal: leaving.signal,
		});
		lost.catch(() => {});
		await acted(args);
		leaving.abort();
		await assert.rejects(lost);
		gate.letThrough();
		await until("the outcome",
			async () => (await lookup(key))["status"] === "done");
	} finally {
		await gate.stop();
	}
	const later = await post(args, { key });
	assert.equal(later.status, 201);
	assert.equal(later.headers["idempotent-replayed"], "true");
	assert.deepEqual(count(args), { effects: 1, repeats: 0 });
});

test("a client that leaves in its own body has asked nothing", async () => {
	const { key, args } = newCall();
	const { port } = new URL(base);
	const socket = dial(Number(port), "127.0.0.1");
	await once(socket, "connect");
	socket.end("POST /tools/charge HTTP/1.1\r\nHost: x\r\n"
		+ `Authorization: Bearer ${ALICE}\r\nIdempotency-Key: "${key}"\r\n`
		+ "Content-Type: application/json\r\nContent-Length: 999\r\n\r\n{");
	socket.resume();
	await once(socket, "close");
	assert.deepEqual(await lookup(key), {});
	assert.equal((await post(args, { key })).status, 201);
});

test("after the lease another attempt takes over", () =>
	withTimes("300 ms", "20 hours", async () => {
		const { key, args } = newCall();
		const gate = await Gate.start(bank);
		try {
			const at = await listen(toolsAt(gate.url));
			const slow = post(args, { key, at });
			await acted(args);
			const fast = await postUntilFinal(args, { key });
			assert.equal(fast.status, 201);

			/* the first has lost the key, and is told to ask again */
			gate.letThrough();
			const answer = await slow;
			assert.equal(answer.status, 409);
			assert.equal(codeOf(answer), "IK002");
			assert.equal(answer.headers["retry-after"], "1");
			assertReplay(await post(args, { key, at }), fast);
		} finally {
			await gate.stop();
		}
		assert.deepEqual(count(args), { effects: 1, repeats: 1 });
	}));

test("an outcome that stays unknown is for a person", () =>
	withTimes("30 seconds", "300 ms", async () => {
		const { key, args } = newCall();
		await bank.next("lost");
		assert.equal((await post(args, { key })).status, 502);
		await until("the end of takeover", async () => {
			const { rows } = await pool.query(
				`SELECT clock_timestamp() > created_at + '300 ms' AS over
				   FROM idem_lookup($1, $2)`, [key, nameOf(ALICE)]);
			return rows[0].over;
		});
		const answer = await post(args, { key });
		assert.equal(answer.status, 409);
		assert.equal(codeOf(answer), "IK006");
		assert.equal(answer.headers["retry-after"], undefined);
		assert.deepEqual(count(args), { effects: 1, repeats: 0 });
	}));

test("a receiver killed after the charge leaves it to the next", () =>
	withTimes("2 s", "20 hours", async () => {
		const { key, args } = newCall();
		const gate = await Gate.start(bank);
		const victim = await Service.start(process.execPath, [SERVE],
			{ PROVIDER_URL: gate.url });
		try {
			const lost = post(args, { key, at: victim.url });
			lost.catch(() => {});
			await acted(args);
			const busy = await post(args, { key });
			assert.equal(busy.status, 409);
			assert.match(busy.headers["retry-after"] ?? "", /^[12]$/);
			await victim.stop("SIGKILL");
			await assert.rejects(lost);
		} finally {
			await victim.stop();
			await gate.stop();
		}
		const answer = await postUntilFinal(args, { key });
		assert.equal(answer.status, 201);
		assert.deepEqual(count(args), { effects: 1, repeats: 1 });
	}));

test("a lost connection after the charge does not lose it", async () => {
	const { key, args } = newCall();
	const gate = await Gate.start(bank);
	const victim = connect("receiver_victim");
	try {
		const at = await listen(toolsAt(gate.url), victim);
		const first = post(args, { key, at });
		await acted(args);
		const { rowCount } = await pool.query(
			`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			  WHERE application_name = 'receiver_victim'`);
		assert.equal(rowCount, 1);
		gate.letThrough();
		assert.equal((await first).status, 201);
		assertReplay(await post(args, { key }), await first);
	} finally {
		await gate.stop();
		await victim.end();
	}
	assert.deepEqual(count(args), { effects: 1, repeats: 0 });
});

test("without the database the answer is 503, and no charge", async () => {
	const { key, args } = newCall();
	const lonely = await Service.start(process.execPath, [SERVE],
		{ PROVIDER_URL: bank.url, PGPORT: "1" });
	try {
		const answer = await post(args, { key, at: lonely.url });
		assert.equal(answer.status, 503);
		assert.equal(answer.headers["retry-after"], "1");
	} finally {
		await lonely.stop();
	}
	assert.deepEqual(count(args), { effects: 0, repeats: 0 });
});
