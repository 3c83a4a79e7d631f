/* The database, where PGHOST and friends say. */

import pg from "pg";

export function connect(application_name: string): pg.Pool {
	const pool = new pg.Pool({
		application_name,
		connectionTimeoutMillis: 5000,
		allowExitOnIdle: true,
	});

	/* an idle connection that breaks must not end the process */
	pool.on("error", ({ message }) => console.error("pool:", message));
	return pool;
}
