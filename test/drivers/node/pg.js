// node-postgres

import { readFileSync } from "node:fs";
import pg from "pg";
import { facts, late, outcome } from "./facts.js";

const NAME = "node-postgres";
console.log("#", NAME, JSON.parse(readFileSync("node_modules/pg/package.json")).version);

const pool = new pg.Pool({ max: 4 });
// a client that is thrown away in the midst of a query has an error to report
pool.on("error", () => {});
const first = async (db, ...query) => Object.values((await db.query(...query)).rows[0])[0];
const query = (text, values) => first(pool, text, values);

async function transaction(key) {
  const db = await pool.connect();
  try {
    await db.query("BEGIN");
    return await first(db, "SELECT status FROM idem_reserve($1, two_phase => true)", [key]);
  } finally {
    await db.query("ROLLBACK");
    db.release();
  }
}

async function rival() {
  const db = await pool.connect();
  await db.query("BEGIN");
  await db.query("SELECT idem_reserve('late')");
  return async () => {
    await db.query("ROLLBACK");
    db.release();
  };
}

/** One connection with this limit, which is thrown away afterwards. */
const limited = limit => async text => {
  const db = new pg.Client(limit);
  db.on("error", () => {});
  await db.connect();
  const said = await outcome(db.query(text));
  db.connection.stream.destroy();
  return said === "the driver refuses" ? "an error of the driver's" : said;
};

await pool.query("TRUNCATE idempotency_keys");
await facts(NAME, query, transaction,
  { text: "`JSON.stringify(value)`", value: JSON.stringify, type: "" });
await late(NAME, "`statement_timeout`", query, await rival(),
  limited({ statement_timeout: 200 }), false);
await late(NAME, "`query_timeout`", query, await rival(),
  limited({ query_timeout: 200 }), true);
await pool.end();
