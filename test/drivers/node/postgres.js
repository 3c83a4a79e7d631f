// postgres.js

import { readFileSync } from "node:fs";
import postgres from "postgres";
import { facts, late, outcome, waiting } from "./facts.js";

const NAME = "postgres.js";
console.log("#", NAME, JSON.parse(readFileSync("node_modules/postgres/package.json")).version);

const sql = postgres({ max: 4, onnotice: () => {} });
const first = async (db, text, values) =>
  Object.values((await db.unsafe(text, values))[0])[0];
const query = (text, values) => first(sql, text, values);
const transaction = key => sql.begin(db =>
  first(db, "SELECT status FROM idem_reserve($1, two_phase => true)", [key]));

async function rival() {
  const db = await sql.reserve();
  await db`BEGIN`;
  await db`SELECT idem_reserve('late')`;
  return async () => {
    await db`ROLLBACK`;
    db.release();
  };
}

async function cancel(text) {
  const call = sql.unsafe(text);
  const said = outcome(call);       // which begins it
  await waiting(query, 1);
  call.cancel();
  return said;
}

await sql`TRUNCATE idempotency_keys`;
await facts(NAME, query, transaction,
  { text: "`sql.json(value)`", value: value => sql.json(value), type: "" });
await late(NAME, "`query.cancel()`", query, await rival(), cancel, false);
await sql.end();
