/*
 * Charge an invoice exactly once: idem_tool in two phases.
 *
 * This is the part to copy.  README.md explains the order of the steps.
 */

import { and, eq, sql } from "drizzle-orm";

import {
	reach, sqlState, Unreachable,
	type Answer, type Idem, type Reservation,
} from "../../common/idem.js";
import {
	ask, NotSent, Refused, type Provider,
} from "../../common/provider.js";
import { invoices, type Database, type Invoice } from "./db.js";

export type Outcome =
	| { status: "charged"; invoice: string; receipt: string }
	| { status: "declined"; invoice: string; decision: number; reason: string }
	| { status: "in_progress"; invoice: string; retry_after: number }
	| { status: "try_later"; invoice: string; retry_after: number }
	| { status: "unknown"; invoice: string }
	| { status: "changed"; invoice: string }
	| { status: "no_invoice"; invoice: string };

const RETRY_AFTER = 1;

/** One for each decision to charge; made before the first attempt. */
export function chargeKey(id: string, decision: number): string {
	return decision === 1 ? `charge:${id}` : `charge:${id}:${decision}`;
}

/** Charge what the database says, as often as somebody has decided. */
export async function charge(
	database: Database, provider: Provider, id: string,
): Promise<Outcome> {
	try {
		const invoice = await findInvoice(database, id);
		return invoice === undefined
			? { status: "no_invoice", invoice: id }
			: await chargeInvoice(database, provider, invoice);
	} catch (error) {
		/* before the charge or after it: the same call again is right */
		if (error instanceof Unreachable)
			return tryLater(id);
		throw error;
	}
}

async function chargeInvoice(
	{ idem }: Database, provider: Provider, invoice: Invoice,
): Promise<Outcome> {
	const { id, decision, amount_cents, currency } = invoice;
	const request = { invoice: id, amount_cents, currency };

	let answer: Answer;
	try {
		answer = await idem.begin("charge", request, chargeKey(id, decision));
	} catch (error) {
		if (sqlState(error) === "IK001")
			return { status: "changed", invoice: id };
		throw error;
	}

	switch (answer.status) {
	case "reserved":
		return act(idem, answer, provider, request, decision);
	case "done":
	case "failed":
		return answer.result as Outcome;
	case "in_progress":
		return inProgress(id, answer.retry_after);
	case "expired":
		return { status: "unknown", invoice: id };
	case "unkeyed":
		throw new Error("charge is not registered as a write");
	}
}

/* The reservation is ours, and for the time of the lease nobody else's. */
async function act(
	idem: Idem, won: Reservation, provider: Provider,
	request: { invoice: string }, decision: number,
): Promise<Outcome> {
	const { invoice } = request;
	let receipt: string;
	try {
		receipt = await ask(provider, "charges", request, won.provider_key);
	} catch (error) {
		if (error instanceof Refused) {
			const declined: Outcome =
				{ status: "declined", invoice, decision, reason: error.reason };
			return await idem.fail(won, declined)
				? declined : inProgress(invoice, null);
		}
		if (error instanceof NotSent)
			await idem.release(won);
		else
			await idem.abandon(won);
		return tryLater(invoice);
	}

	/* outside the try: whatever happens now, the card has been charged */
	const charged: Outcome = { status: "charged", invoice, receipt };
	return await idem.complete(won, charged)
		? charged : inProgress(invoice, null);
}

function inProgress(invoice: string, retry_after: number | null): Outcome {
	return {
		status: "in_progress", invoice,
		retry_after: retry_after ?? RETRY_AFTER,
	};
}

function tryLater(invoice: string): Outcome {
	return { status: "try_later", invoice, retry_after: RETRY_AFTER };
}

/**
 * The customer has decided to be charged again, after the decision before
 * this one has failed.  False: it has not failed.
 */
export async function decide(
	{ db }: Database, id: string, decision: number,
): Promise<boolean> {
	const before = chargeKey(id, decision - 1);
	await reach(db.update(invoices)
		.set({ decision })
		.where(and(
			eq(invoices.id, id),
			eq(invoices.decision, decision - 1),
			sql`(SELECT status FROM idem_lookup(${before})) = 'failed'`)));

	/* a decision that was made before is as good */
	const [invoice] = await reach(db.select().from(invoices)
		.where(and(eq(invoices.id, id), eq(invoices.decision, decision))));
	return invoice !== undefined;
}

async function findInvoice(
	{ db }: Database, id: string,
): Promise<Invoice | undefined> {
	const [invoice] = await reach(
		db.select().from(invoices).where(eq(invoices.id, id)));
	return invoice;
}
