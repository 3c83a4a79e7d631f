/* The HTTP service on a free port of 127.0.0.1, which it prints. */

import type { AddressInfo } from "node:net";

import { connect } from "./db.js";
import { httpServer } from "./http.js";
import { provider } from "./settings.js";

const server = httpServer(connect("charge_service"), provider());
server.listen(0, "127.0.0.1", () => {
	console.log((server.address() as AddressInfo).port);
});

/* end what has begun, and keep no connection alive for more */
process.on("SIGTERM", () => {
	server.keepAliveTimeout = 1;
	server.close();
	server.closeIdleConnections();
});
