"""What an operation leaves behind: counters and instructions.

They hardly vary from run to run, unlike times: these are the figures to
trust.
"""

import os
import re
import shutil
from dataclasses import dataclass

from server import HERE, run, wait_until
from wire import FEW, Variant, pairs

RESULT_SIZES = (30, 100, 500, 2000)
FILLFACTORS = (90, 50, 25, 10)
OPEN = 2000
INSTRUCTION_TARGETS = {
    ("whole execution", "reserve + complete", "bare INSERT + UPDATE"): 0.9,
    ("whole execution", "reserve + complete", "INSERT, UPDATE by hand"): 0.7,
    ("whole execution", "replay", "primary-key SELECT"): 0.65,
    ("whole execution", "replay", "INSERT, SELECT by hand"): 0.27,
    ("everything", "replay, any key", "primary-key SELECT"): 1,
}


@dataclass
class Counters:
    """Of all tables of the database, at one moment or for one operation."""
    wal: float
    xids: float
    buffers: float
    updates: float
    hot: float
    dead: float

    @classmethod
    def read(cls, server):
        # a session's figures are complete when it has ended
        wait_until(lambda: server.query(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type ="
            " 'client backend'") == [(1,)])
        return cls(*map(float, server.query("""
            SELECT pg_current_wal_insert_lsn() - '0/0',
                pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
                (SELECT sum(heap_blks_hit + heap_blks_read + idx_blks_hit
                        + idx_blks_read + coalesce(toast_blks_hit
                        + toast_blks_read + tidx_blks_hit + tidx_blks_read, 0))
                    FROM pg_statio_user_tables)
                + (SELECT sum(blks_hit + blks_read)
                    FROM pg_statio_user_sequences),
                sum(n_tup_upd), sum(n_tup_hot_upd), sum(n_dead_tup)
            FROM pg_stat_user_tables""", dbname="bench")[0]))

    def __sub__(self, other):
        return Counters(*(a - b for a, b in zip(
            vars(self).values(), vars(other).values())))

    def per(self, rounds):
        return Counters(*(value / rounds for value in vars(self).values()))

    def hot_share(self):
        return self.hot / self.updates if self.updates else None


def counters(bench):
    """Tables of both kinds of operation, and of results of several sizes."""
    bench.report.section("Footprint")
    bench.report.text(
        "One client, full_page_writes off, so that it does not matter when"
        " the last checkpoint was. Buffers: pages of tables, indexes and"
        " sequences that were looked at, as often as they were. HOT: updates"
        " that did not touch an index.")
    table(bench, "reserve + complete", pairs("pair")
          + [Variant("by hand, expiry, SELECT", "pair_three", "expiry")])
    replays = pairs("storm")
    for variant in replays:
        variant.variables = dict(share=0, keys=FEW)
    replay = table(bench, "replay", replays)
    target = bench.report.target
    long_keys(bench)
    target("", "WAL bytes a replay", 0, round(replay["idem_tool"].wal))
    target("", "dead tuples a replay", 0, replay["idem_tool"].dead)
    target("", "transaction ids a replay", 0,
           round(replay["idem_tool"].xids, 2))
    many_open(bench)
    sizes(bench)


def table(bench, what, variants):
    rounds = 1000 if bench.quick else 5000
    # what was left to prune is nobody's here
    bench.server.query("VACUUM", dbname="bench")
    costs = {v.name: cost(bench, v, rounds) for v in variants}
    mine = costs["idem_tool"]
    bench.report.table(
        (what, "bytes of WAL", "idem_tool needs", "buffers",
         "transaction ids", "HOT", "dead tuples"),
        [(name, f"{c.wal:.0f}",
          "" if c is mine or c.wal < 1 else f"{mine.wal / c.wal:.2f} ×",
          f"{c.buffers:.1f}", f"{c.xids:.2f}", percent(c.hot_share()),
          f"{c.dead:.2f}") for name, c in costs.items()])
    return costs


def cost(bench, variant, rounds):
    before = Counters.read(bench.server)
    bench.server.pgbench(variant.script, transactions=rounds,
                         schema=variant.schema, variables=variant.variables)
    return (Counters.read(bench.server) - before).per(rounds)


# pairs, each with two commits; k is a key of 36 bytes
PAIRS = """
DO $$ DECLARE k text; won bigint; BEGIN
    FOR i IN 1 .. {pairs} LOOP
        k := gen_random_uuid();
        {reserve};
        COMMIT;
        {complete};
        COMMIT;
    END LOOP;
END $$"""
RESULT = """'{"charge": "ch_123", "ok": true}'"""
LONG_KEYS = {
    "idem_tool": ("SELECT token INTO won FROM idem_reserve(k, '5 min')",
                  f"PERFORM idem_complete(k, {RESULT}, won)"),
    **{name: (f"INSERT INTO {table} (key, status, expires_at) VALUES (k,"
              " 'in_progress', now() + interval '5 min') ON CONFLICT DO"
              " NOTHING",
              f"UPDATE {table} SET status = 'done', completed_at = now(),"
              f" expires_at = now() + interval '1 day', result = {RESULT}"
              " WHERE key = k AND status = 'in_progress'")
       for name, table in (("by hand, expiry", "expiry.by_hand"),
                           ("by hand", "by_hand"))},
}


def long_keys(bench):
    """The WAL of keys as they mostly are."""
    rounds = 1000 if bench.quick else 5000
    wal = {}
    for name, (reserve, complete) in LONG_KEYS.items():
        before = Counters.read(bench.server)
        bench.server.query(PAIRS.format(
            pairs=rounds, reserve=reserve, complete=complete), dbname="bench")
        wal[name] = (Counters.read(bench.server) - before).per(rounds).wal
    mine = wal["idem_tool"]
    ratio = {name: mine / peer for name, peer in wal.items()}
    bench.report.table(
        ("reserve + complete, a UUID as key", "bytes of WAL",
         "idem_tool needs"),
        [(name, f"{wal[name]:.0f}",
          "" if name == "idem_tool" else f"{ratio[name]:.2f} ×")
         for name in wal])
    bench.report.target(
        "", "WAL of reserve + complete, 36-byte key, against “by hand,"
        " expiry”", 0.7, ratio["by hand, expiry"])
    bench.report.in_short(
        "WAL", f"{mine:.0f} bytes for reserve + complete of a UUID,"
        f" {ratio['by hand, expiry']:.2f} × by hand with an index on"
        f" `expires_at` and {ratio['by hand']:.2f} × without; nothing for a"
        " replay; completions are heap-only")


def percent(share):
    return "–" if share is None else f"{100 * share:.1f} %"


# reserve all, then complete them in another order, each in a transaction
RESERVE_ALL = """
DO $$ BEGIN
    FOR i IN 1 .. {keys} LOOP
        PERFORM idem_reserve('charge:' || md5(i::text), '1 hour');
        COMMIT;
    END LOOP;
END $$"""
COMPLETE_ALL = """
DO $$ DECLARE reserved record; BEGIN
    FOR reserved IN SELECT key, token FROM idempotency_keys ORDER BY key LOOP
        PERFORM idem_complete(reserved.key, to_jsonb(left((
            SELECT string_agg(md5(reserved.key || i), '')
            FROM generate_series(1, {size} / 32 + 1) i), {size})),
            reserved.token);
        COMMIT;
    END LOOP;
END $$"""


def many_open(bench):
    """The WAL of completions where others are open on the same page."""
    bench.server.query("TRUNCATE idempotency_keys", dbname="bench")
    bench.server.query(RESERVE_ALL.format(keys=OPEN), dbname="bench")
    before = Counters.read(bench.server)
    bench.server.query(COMPLETE_ALL.format(size=30), dbname="bench")
    spent = (Counters.read(bench.server) - before).per(OPEN)
    bench.report.text(
        f"{OPEN} keys are reserved, and then completed with results of 30"
        f" bytes: {spent.wal:.0f} bytes of WAL for a completion,"
        f" {percent(spent.hot_share())} of them HOT.")
    bench.report.target("", f"WAL bytes a completion, {OPEN} open at once", 195,
                        spent.wal)


def sizes(bench):
    """Which results stay on their row's page, with which fillfactor."""
    keys = 500 if bench.quick else 5000
    rows = []
    for size in RESULT_SIZES:
        row = [f"{size} bytes"]
        for fillfactor in FILLFACTORS:
            spent, disk = fill_and_complete(bench.server, keys, size,
                                            fillfactor)
            row += [f"{percent(spent.hot_share())}, {spent.wal:.0f},"
                    f" {disk / keys:.0f}"]
            if fillfactor == 50 and size <= 100:
                bench.report.target("", f"HOT completions, {size} bytes, in %",
                                    95, 100 * spent.hot_share(), least=True)
        rows.append(row)
    bench.report.text(
        f"The size of a result that does not compress, and the table's"
        f" fillfactor (50 is the default). {keys} keys are reserved before"
        " the first is completed, so that pages are full. HOT completions,"
        " bytes of WAL for reserve + complete, bytes on disk a key:")
    bench.report.table(("result", *(f"fillfactor {f}" for f in FILLFACTORS)),
                       rows)
    bench.server.new_database("bench", bench.keys)


def fill_and_complete(server, keys, size, fillfactor):
    server.query("TRUNCATE idempotency_keys", dbname="bench")
    server.query("ALTER TABLE idempotency_keys"
                 f" SET (fillfactor = {fillfactor})", dbname="bench")
    before = Counters.read(server)
    server.query(RESERVE_ALL.format(keys=keys), dbname="bench")
    server.query(COMPLETE_ALL.format(size=size), dbname="bench")
    spent = (Counters.read(server) - before).per(keys)
    [(disk,)] = server.query(
        "SELECT pg_total_relation_size('idempotency_keys')", dbname="bench")
    return spent, disk


def instructions(bench):
    """By instructions.sh, which has a server of its own."""
    bench.report.section("Instructions")
    if not shutil.which("valgrind"):
        bench.report.text("Not counted: valgrind is not installed.")
        return
    bench.report.text(
        "In the server, over the wire with prepared statements, counted by"
        " callgrind (`test/bench/instructions.sh`). The whole execution:"
        " fetching the plan, starting and ending the executor, and what is"
        " between. Everything: protocol and commit as well, parser and"
        " planner where it is not prepared. The library is not preloaded."
        " Replays are of a few keys that the session has seen, unless it"
        " says “any key”, of 10000 if it does not say of how many.")
    output = run(["bash", str(HERE / "instructions.sh"),
                  *(["whole"] if bench.quick else [])],
                 dict(os.environ, **(dict(SHORT="100", LONG="300")
                                     if bench.quick else {})))
    rows = []
    measure = ""
    for line in output.split("\n"):
        if line.endswith(":"):
            measure = line.rstrip(":")
        found = re.match(r"(.*?) +(\d+) instructions, +([\d.]+) x"
                         r" (.*) \((\d+)\)", line)
        if found:
            what, mine, ratio, peer, theirs = found.groups()
            rows.append((measure, what, mine, peer, theirs, f"{ratio} ×"))
            for (part, *same), limit in INSTRUCTION_TARGETS.items():
                if part in measure.lower() and same == [what, peer]:
                    bench.report.target(
                        "", f"instructions of {what} against {peer},"
                        f" {measure[0].lower()}{measure[1:]}", limit,
                        float(ratio))
    bench.report.table(("measure", "", "idem_tool", "against", "", "ratio"),
                       rows)
