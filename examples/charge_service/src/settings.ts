/* Where the provider is: PROVIDER_URL, and PROVIDER_TIMEOUT in ms. */

import type { Provider } from "../../common/provider.js";

export function provider(): Provider {
	const url = process.env["PROVIDER_URL"];
	if (url === undefined)
		throw new Error("PROVIDER_URL is not set");
	return { url, timeout: Number(process.env["PROVIDER_TIMEOUT"] ?? 10_000) };
}
