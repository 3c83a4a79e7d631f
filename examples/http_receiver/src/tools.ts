/* What can be called: one write at a provider, and one read. */

import { ask, Refused, type Provider } from "../../common/provider.js";
import type { Handler } from "./idempotent.js";
import { Problem } from "./problem.js";

export type Tools = Record<string, Handler>;

export function tools(provider: Provider): Tools {
	return {
		charge: async ({ args: { customer, amount_cents }, key }) => {
			if (typeof customer !== "string" || !isAmount(amount_cents))
				return refuse(400, "customer and amount_cents are required.");
			if (key === null)
				throw new Error("charge is not registered as a write");
			try {
				const receipt = await ask(provider, "charges",
					{ customer, amount_cents }, key);
				return {
					status: 201,
					headers: { Location: `/receipts/${receipt}` },
					body: { receipt, customer, amount_cents },
				};
			} catch (error) {
				if (error instanceof Refused)
					return refuse(402, `The card was ${error.reason}.`);
				throw error;
			}
		},

		quote: async ({ args: { amount_cents } }) => isAmount(amount_cents)
			? { status: 200, body: { fee_cents: Math.ceil(amount_cents / 40) } }
			: refuse(400, "amount_cents is required."),
	};
}

function isAmount(value: unknown): value is number {
	return Number.isSafeInteger(value) && Number(value) > 0;
}

function refuse(status: number, detail: string) {
	return {
		status,
		headers: { "Content-Type": "application/problem+json" },
		body: new Problem(status, detail).body(),
	};
}
