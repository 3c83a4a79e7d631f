/*
 * A client of idem_tool for effects outside the database: two phases, on
 * node-postgres.  Worth copying; it imports nothing but Node.
 *
 *     const idem = new Idem(pool);
 *     const answer = await idem.begin("charge", request, key);
 *     if (answer.status === "reserved") {
 *         ... the effect, with answer.provider_key ...
 *         await idem.complete(answer, result);
 *     }
 *
 * The reservation has to be committed before the effect, so every call is a
 * statement of its own on the pool.  (idem_begin refuses anything else.)
 */

import { setTimeout as sleep } from "node:timers/promises";

/** What is needed of a pool of node-postgres. */
export interface Queryable {
	query(text: string, values: unknown[]): Promise<{ rows: unknown[] }>;
}

/** The action is ours: act, then settle it with this. */
export interface Reservation {
	status: "reserved";
	key: string;
	scope: string | null;
	token: string;			/* a bigint: not for JavaScript's numbers */
	attempt: number;
	maybe_ran: boolean;		/* an earlier attempt may have had its effect */
	provider_key: string;	/* to hand on: the same for every attempt */
	result_ttl: string | null;
}

export type Answer =
	| Reservation
	| { status: "done"; result: unknown }
	| { status: "failed"; result: unknown }
	| { status: "in_progress"; retry_after: number | null }
	| { status: "expired" }
	| { status: "unkeyed" };

const SETTLE_ATTEMPTS = 5;
const SETTLE_PAUSE = 200;

export class Idem {
	constructor(private readonly db: Queryable) {}

	/**
	 * Reserve the key for a call of this registered tool, or hear what has
	 * become of it.  Only "reserved" and "unkeyed" permit the effect.
	 */
	async begin(
		tool: string, args: unknown, key: string | null,
		scope: string | null = null,
	): Promise<Answer> {
		const { rows } = await reach(this.db.query(
			`SELECT status, result, token::text, attempt, maybe_ran,
			        retry_after, key, provider_key, result_ttl::text,
			        $4::text AS scope
			   FROM idem_begin($1, $2, $3, scope => $4)`,
			[tool, JSON.stringify(args), key, scope]));
		return rows[0] as Answer;
	}

	/** The key of a call that has none: from tool, arguments and turn. */
	async callKey(
		tool: string, args: unknown, turn: string,
	): Promise<string> {
		const { rows } = await reach(this.db.query(
			"SELECT idem_call_key($1, $2, $3) AS key",
			[tool, JSON.stringify(args), turn]));
		return (rows[0] as { key: string }).key;
	}

	/** It ran.  False: too late, begin again to hear what is recorded. */
	complete(won: Reservation, result: unknown): Promise<boolean> {
		return this.record("idem_complete", won, result);
	}

	/** It failed for good.  False: as for complete. */
	fail(won: Reservation, error: unknown): Promise<boolean> {
		return this.record("idem_fail", won, error);
	}

	/**
	 * This attempt certainly did not run: the next caller may.  If an earlier
	 * one may have, that is no reason to forget it.
	 */
	release(won: Reservation): Promise<void> {
		return this.giveBack(
			won.maybe_ran ? "idem_abandon" : "idem_release", won);
	}

	/** Nobody knows whether it ran: the next caller takes over. */
	abandon(won: Reservation): Promise<void> {
		return this.giveBack("idem_abandon", won);
	}

	private async record(
		call: string, won: Reservation, outcome: unknown,
	): Promise<boolean> {
		try {
			await this.settle(
				`SELECT ${call}($1, $2, $3, ttl => $4, scope => $5)`,
				[won.key, JSON.stringify(outcome), won.token,
					won.result_ttl, won.scope]);
			return true;
		} catch (error) {
			/* taken over, freed, or settled otherwise in the meantime */
			if (["IK002", "IK003", "IK004"].includes(sqlState(error) ?? ""))
				return false;
			throw error;
		}
	}

	/* Without the database the lease ends by itself, which is as good. */
	private async giveBack(call: string, won: Reservation): Promise<void> {
		try {
			await this.settle(`SELECT ${call}($1, $2, scope => $3)`,
				[won.key, won.token, won.scope]);
		} catch (error) {
			if (!(error instanceof Unreachable))
				throw error;
		}
	}

	/* To settle twice does no harm: a lost connection is no reason to stop. */
	private async settle(text: string, values: unknown[]): Promise<void> {
		for (let attempt = 1; ; attempt++) {
			try {
				await reach(this.db.query(text, values));
				return;
			} catch (error) {
				if (!(error instanceof Unreachable)
					|| attempt === SETTLE_ATTEMPTS)
					throw error;
			}
			await sleep(SETTLE_PAUSE);
		}
	}
}

/** The SQLSTATE, if the error is one of the server's, wrapped or not. */
export function sqlState(error: unknown): string | undefined {
	if (!(error instanceof Error))
		return undefined;
	/* errors of the system have a code as well, and EPIPE looks like one */
	if ("severity" in error && "code" in error)
		return String(error.code);
	return sqlState(error.cause);
}

/** The database did not answer: nothing is known of the statement. */
export class Unreachable extends Error {}

/** Await a query, and tell errors of the server from the lack of a server. */
export async function reach<T>(query: PromiseLike<T>): Promise<T> {
	try {
		return await query;
	} catch (error) {
		const code = sqlState(error);
		if (code === undefined || /^(08|57P0[1-3]|53300)/.test(code))
			throw new Unreachable("no database", { cause: error });
		throw error;
	}
}
