/* Run schema.sql in the database that PGDATABASE names. */

import { readFileSync } from "node:fs";

import { connect } from "./db.js";

const pool = connect("setup");
await pool.query(readFileSync("schema.sql", "utf8"));
await pool.end();
