// Reserve and complete new keys, for a time:
//
//	node driver.js KIND CLIENTS SECONDS DIRECTORY
//
// with so many clients at once, each with a connection of its own over a Unix
// socket in that directory.  Prints how many pairs a second there were.

import { randomUUID } from "node:crypto";
import { join } from "node:path";

import idempotency from "@node-idempotency/core";
import adapter from "@node-idempotency/storage-adapter-redis";
import pg from "pg";
import { createClient } from "redis";

const result = { charge: "ch_123", ok: true };
const [kind, clients, seconds, directory] = process.argv.slice(2);

// Each returns what does one pair, and what ends the connection

async function postgres(pair) {
	const client = new pg.Client({
		host: directory, user: "postgres", database: "bench",
	});
	await client.connect();
	return {
		pair: () => pair(client, `charge:${randomUUID()}`),
		end: () => client.end(),
	};
}

async function idem(client, key) {
	const { rows } = await client.query({
		name: "reserve",
		text: "SELECT status, token FROM idem_reserve($1, '5 min')",
		values: [key],
	});
	await client.query({
		name: "complete",
		text: "SELECT idem_complete($1, $2, $3)",
		values: [key, result, rows[0].token],
	});
}

async function byHand(client, key) {
	await client.query({
		name: "reserve",
		text: "INSERT INTO by_hand (key, status, expires_at)"
			+ " VALUES ($1, 'in_progress', now() + interval '5 min')"
			+ " ON CONFLICT DO NOTHING RETURNING key",
		values: [key],
	});
	await client.query({
		name: "complete",
		text: "UPDATE by_hand SET status = 'done', completed_at = now(),"
			+ " expires_at = now() + interval '1 day', result = $2"
			+ " WHERE key = $1 AND status = 'in_progress'",
		values: [key, result],
	});
}

async function redis() {
	const client = createClient({
		socket: { path: join(directory, "redis.sock") },
	});
	await client.connect();
	return {
		pair: async () => {
			const key = `charge:${randomUUID()}`;
			await client.set(key, "in_progress", { NX: true, EX: 300 });
			await client.set(key, JSON.stringify(result), { EX: 86400 });
		},
		end: () => client.quit(),
	};
}

async function library() {
	const storage = new adapter.RedisStorageAdapter({
		socket: { path: join(directory, "redis.sock") },
	});
	await storage.connect();
	const guard = new idempotency.Idempotency(storage);
	return {
		pair: async () => {
			const request = {
				method: "POST",
				path: "/charge",
				headers: { "idempotency-key": randomUUID() },
				body: { amount: 42 },
			};
			await guard.onRequest(request);
			await guard.onResponse(request, { body: result });
		},
		end: () => storage.disconnect(),
	};
}

const kinds = {
	idem: () => postgres(idem),
	hand: () => postgres(byHand),
	redis,
	library,
};

const sessions = await Promise.all(
	Array.from({ length: Number(clients) }, kinds[kind]));
// connections, plans and the compiler are warm
for (const session of sessions) {
	for (let i = 0; i < 20; i++) {
		await session.pair();
	}
}

let pairs = 0;
const start = performance.now();
const end = start + seconds * 1000;
await Promise.all(sessions.map(async (session) => {
	while (performance.now() < end) {
		await session.pair();
		pairs++;
	}
}));
console.log(pairs / (performance.now() - start) * 1000);
await Promise.all(sessions.map((session) => session.end()));
