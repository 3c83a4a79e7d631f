/* For the tests: a provider with its ledger, and processes to kill. */

import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { text } from "node:stream/consumers";
import { setTimeout as sleep } from "node:timers/promises";

export type Fate = "ok" | "lost" | "late" | "declined" | "unavailable";

/** What the provider did, or would have done a second time. */
export interface Line {
	action: string;
	body: Record<string, unknown>;
	key: string | null;
	repeat: boolean;
	receipt: Record<string, unknown>;
}

/** A process that prints a port when it is ready. */
export class Service {
	private constructor(
		readonly process: ChildProcess, readonly url: string,
	) {}

	static async start(
		command: string, args: string[], env: Record<string, string> = {},
	): Promise<Service> {
		const child = spawn(command, args, {
			env: { ...process.env, ...env },
			stdio: ["pipe", "pipe", "inherit"],
		});
		for await (const port of createInterface(child.stdout))
			return new Service(child, `http://127.0.0.1:${port}`);
		throw new Error(`${command} ${args.join(" ")} did not start`);
	}

	/** SIGKILL: as if the machine had lost its power. */
	async stop(signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
		const { exitCode, signalCode } = this.process;
		if (exitCode === null && signalCode === null) {
			this.process.kill(signal);
			await once(this.process, "exit");
		}
	}
}

/** provider.py as a child, with a ledger in a directory of its own. */
export class Bank {
	private constructor(
		private readonly directory: string,
		private readonly service: Service,
	) {}

	static async start(...options: string[]): Promise<Bank> {
		const directory = mkdtempSync(join(tmpdir(), "ledger-"));
		try {
			return new Bank(directory, await Service.start("/usr/bin/python3",
				["../common/provider.py", join(directory, "ledger"),
					...options]));
		} catch (error) {
			rmSync(directory, { recursive: true });
			throw error;
		}
	}

	get url(): string {
		return this.service.url;
	}

	async stop(): Promise<void> {
		await this.service.stop();
		rmSync(this.directory, { recursive: true });
	}

	/** Decide what becomes of the next requests. */
	async next(...fates: Fate[]): Promise<void> {
		await fetch(`${this.url}/next`, {
			method: "POST", body: JSON.stringify(fates),
		});
	}

	/** All that concerns what has this value in this field. */
	ledger(field: string, value: unknown): Line[] {
		return readFileSync(join(this.directory, "ledger"), "utf8")
			.split("\n").slice(0, -1)
			.map((line) => JSON.parse(line) as Line)
			.filter((line) => line.body[field] === value);
	}

	/** How often it really happened, and how often it was only repeated. */
	count(field: string, value: unknown): { effects: number; repeats: number } {
		const lines = this.ledger(field, value);
		const repeats = lines.filter((line) => line.repeat).length;
		return { effects: lines.length - repeats, repeats };
	}
}

/** A way to the bank on which answers wait until they are let through. */
export class Gate {
	private open = () => {};
	private readonly opened = new Promise<void>((resolve) => {
		this.open = resolve;
	});

	private constructor(
		private readonly server: Server, readonly url: string,
	) {}

	static async start(bank: Bank): Promise<Gate> {
		const server = createServer();
		server.listen(0, "127.0.0.1");
		await once(server, "listening");
		const { port } = server.address() as AddressInfo;
		const gate = new Gate(server, `http://127.0.0.1:${port}`);
		server.on("request", async (request, response) => {
			const key = String(request.headers["idempotency-key"]);
			const answer = await fetch(bank.url + request.url, {
				method: "POST",
				headers: { "Idempotency-Key": key },
				body: await text(request),
			});
			await gate.opened;
			response.writeHead(answer.status);
			response.end(await answer.text());
		});
		return gate;
	}

	letThrough(): void {
		this.open();
	}

	async stop(): Promise<void> {
		this.open();
		this.server.closeAllConnections();
		this.server.close();
		await once(this.server, "close");
	}
}

/** Wait until this is true; a condition, never a time. */
export async function until(
	what: string, holds: () => boolean | Promise<boolean>,
): Promise<void> {
	const end = Date.now() + 20_000;
	while (!await holds()) {
		if (Date.now() > end)
			throw new Error(`waited in vain for ${what}`);
		await sleep(20);
	}
}
