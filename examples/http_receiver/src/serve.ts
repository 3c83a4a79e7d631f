/*
 * The receiver on a free port of 127.0.0.1, which it prints.
 * PROVIDER_URL says where the provider is, PROVIDER_TIMEOUT how many ms it has.
 */

import type { AddressInfo } from "node:net";

import { createApp } from "./app.js";
import { connect } from "./db.js";
import { tools } from "./tools.js";

const url = process.env["PROVIDER_URL"];
if (url === undefined)
	throw new Error("PROVIDER_URL is not set");
const timeout = Number(process.env["PROVIDER_TIMEOUT"] ?? 10_000);

const app = createApp(connect("http_receiver"), tools({ url, timeout }));
const server = app.listen(0, "127.0.0.1", () => {
	console.log((server.address() as AddressInfo).port);
});

/* end what has begun, and keep no connection alive for more */
process.on("SIGTERM", () => {
	server.keepAliveTimeout = 1;
	server.close();
	server.closeIdleConnections();
});
