/* POST /tools/<tool>, for clients with a token. */

import express, { type Express, type RequestHandler } from "express";

import { Idem, reach } from "../../common/idem.js";
import type { connect } from "./db.js";
import { idempotent } from "./idempotent.js";
import { Problem, sendProblems } from "./problem.js";
import type { Tools } from "./tools.js";

type Pool = ReturnType<typeof connect>;

export function createApp(pool: Pool, tools: Tools): Express {
	const idem = new Idem(pool);
	const app = express();
	app.disable("x-powered-by");
	app.use(authenticate(pool), express.json());
	for (const [tool, handler] of Object.entries(tools))
		app.post(`/tools/${tool}`, idempotent(idem, tool, handler));
	app.use(() => {
		throw new Problem(404, "There is no such tool.");
	});
	app.use(sendProblems);
	return app;
}

/* Who calls is the scope of his keys, so it is not for the caller to say. */
function authenticate(pool: Pool): RequestHandler {
	return async (request, response, next) => {
		const token =
			/^Bearer (\S+)$/i.exec(request.get("Authorization") ?? "")?.[1];
		const { rows } = await reach(pool.query(
			`SELECT name FROM clients
			  WHERE token_sha256 = sha256(convert_to($1, 'UTF8'))`, [token]));
		if (rows.length === 0)
			throw new Problem(401, "A token is required.",
				{ headers: { "WWW-Authenticate": "Bearer" } });
		response.locals["client"] = rows[0].name;
		next();
	};
}
