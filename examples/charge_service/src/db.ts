/* The database: invoices by way of drizzle-orm, keys by way of idem_tool. */

import { drizzle } from "drizzle-orm/node-postgres";
import { integer, pgTable, text } from "drizzle-orm/pg-core";
import pg from "pg";

import { Idem } from "../../common/idem.js";

export const invoices = pgTable("invoices", {
	id: text("id").primaryKey(),
	amount_cents: integer("amount_cents").notNull(),
	currency: text("currency").notNull().default("EUR"),
	decision: integer("decision").notNull().default(1),
});

export type Invoice = typeof invoices.$inferSelect;

/** Connect as PGHOST and friends say. */
export function connect(application_name: string) {
	const pool = new pg.Pool({
		application_name,
		connectionTimeoutMillis: 5000,
		allowExitOnIdle: true,
	});

	/* an idle connection that breaks must not end the process */
	pool.on("error", ({ message }) => console.error("pool:", message));

	/*
	 * The keys go by the pool and not by drizzle: inside db.transaction() a
	 * reservation would not be committed when the charge begins.
	 */
	return { pool, db: drizzle({ client: pool }), idem: new Idem(pool) };
}

export type Database = ReturnType<typeof connect>;
