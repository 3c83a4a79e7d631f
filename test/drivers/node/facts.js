// What the probes of node's drivers share.  query is a function that takes a
// statement and its parameters, and returns the first column of the first row.

export function row(...cells) {
  console.log(`| ${cells.join(" | ")} |`);
}

/** The call's value, or what the server or the driver says against it. */
export async function outcome(promise) {
  try {
    return await promise;
  } catch (error) {
    return /^[0-9A-Z]{5}$/.test(error.code ?? "") ? error.code : "the driver refuses";
  }
}

const seen = (query, key) => query(
  "SELECT CASE WHEN count(*) = 0 THEN 'not committed' ELSE 'committed' END"
    + " FROM idem_lookup($1)", [key]);

const recorded = (query, key) => query(
  "SELECT coalesce('`' || result::text || '`', 'SQL NULL') FROM idem_lookup($1)", [key]);

/** How long a lease with this ttl is. */
async function lease(query, key, ttl) {
  const answer = await outcome(
    query("SELECT status FROM idem_reserve($1, $2)", [key, ttl]));
  return answer !== "reserved" ? answer : query(
    "SELECT extract(epoch FROM expires_at - reserved_at)::integer || ' s' FROM idem_lookup($1)",
    [key]);
}

/** What is recorded of a value. */
async function result(query, key, value, type = "") {
  const token = await query("SELECT token FROM idem_reserve($1)", [key]);
  const said = await outcome(
    query(`SELECT idem_complete($1, $2${type}, $3)`, [key, value, token]));
  return said === true ? recorded(query, key) : said;
}

const typeOf = value => value === null ? "null" : typeof value;

/** The rows but for that of time-outs; transaction is a function of a key. */
export async function facts(name, query, transaction, wrap) {
  await query("SELECT idem_reserve($1)", ["plain"]);
  row("transactions", name, await seen(query, "plain"),
    await outcome(query("SELECT status FROM idem_reserve('two', two_phase => true)", [])),
    await outcome(transaction("block")), "nothing to do");

  const raw = [];
  for (const [n, value] of [{ a: 1 }, [1, 2], "ok"].entries())
    raw.push(await result(query, `raw:${n}`, value));
  const cells = [];
  for (const [n, value] of [{ a: 1 }, [1, 2], "ok", "a\0b"].entries())
    cells.push(await result(query, `json:${n}`, wrap.value(value), wrap.type));
  if (cells.slice(0, 3).join() !== '`{"a": 1}`,`[1, 2]`,`"ok"`')
    throw new Error(cells.join());
  row("jsonb", name, ...raw, cells[3],
    typeOf(await query("SELECT result FROM idem_reserve('json:0')", [])), wrap.text);

  const token = await query("SELECT token FROM idem_reserve('token')", []);
  row("times", name, "300000 (milliseconds)",
    await lease(query, "ms", 300000), await lease(query, "300", 300),
    await lease(query, "text", "5 min"), typeOf(token),
    await outcome(query("SELECT idem_complete('token', NULL, $1)", [null])));
}

/** Wait until this many calls wait for the key "late". */
export async function waiting(query, number) {
  const deadline = Date.now() + 30000;
  while (Number(await query(
    "SELECT count(*) FROM pg_stat_activity WHERE state = 'active'"
      + " AND pid <> pg_backend_pid() AND query LIKE '%''late'', wait%'", [])) !== number)
    if (Date.now() > deadline) throw new Error("nobody waits, or still does");
}

/**
 * What becomes of a call that waits when its caller has had enough.  rival is a
 * transaction that has the key; give_up ends the call, and says how.
 */
export async function late(name, how, query, rival, giveUp, goesOn) {
  const said = await giveUp("SELECT status FROM idem_reserve('late', wait => '1 min')");
  await waiting(query, goesOn ? 1 : 0);
  await rival();
  await waiting(query, 0);
  row("time-outs", name, how, said, await seen(query, "late"));
}
