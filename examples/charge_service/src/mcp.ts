/* The tool as an MCP server on standard input and output. */

import {
	StdioServerTransport,
} from "@modelcontextprotocol/sdk/server/stdio.js";

import { charge } from "./charge.js";
import { connect } from "./db.js";
import { provider } from "./settings.js";
import { mcpServer } from "./tool.js";

const database = connect("charge_mcp");
const settings = provider();
const server = mcpServer((invoice) => charge(database, settings, invoice));
await server.connect(new StdioServerTransport());
