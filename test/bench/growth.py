"""W6: the same, with more and more keys."""

from concurrent.futures import ThreadPoolExecutor

from figures import Rounds, number
import plot

SMALL = 10_000
SETTLED = 3_000_000     # where the size of a settled key is looked at
STEPS = (SMALL, 100_000, SETTLED, 10_000_000)
QUICK_STEPS = (SMALL, 300_000)
WORK = {"reserve + complete": ("pair_idem", {}),
        "replay": ("storm_idem", {"share": 0})}


def growth(bench):
    """A small table beside the large one says what the machine does now."""
    steps = QUICK_STEPS if bench.quick else STEPS
    bench.report.section("W6: growth")
    bench.report.text(
        "µs for one client; replays are drawn evenly from all keys. The"
        f" ratio is to a table of {SMALL} keys in the same round.")
    for dbname in ("small", "grown"):
        bench.server.new_database(dbname)
    rows, curves = [], {work: [] for work in WORK}
    last = {}
    held = 0
    for keys in steps:
        fill(bench.server, held, keys)
        held = keys
        disk = sizes(bench.server)
        cost = measure(bench, keys)
        row = [keys]
        for work in WORK:
            ratio = cost["grown", work].over(cost["small", work])
            row += [cost["grown", work].text(), f"{ratio.text()} ×"]
            curves[work].append((keys, cost["grown", work].median))
            if keys == steps[-1]:
                bench.report.target(
                    "W6", f"{work} with {keys} keys against {SMALL}", 1.3,
                    ratio.median)
                last[work] = number(ratio.median)
        rows.append([*row, *map(number, disk)])
        if keys == SETTLED:
            bench.report.target(
                "W6", f"bytes of table for a settled key, {keys} keys", 310,
                disk[0])
    bench.report.table(("keys", "reserve + complete, µs", "ratio",
                        "replay, µs", "ratio", "bytes of table a key",
                        "bytes of index a key"), rows)
    bench.report.plot("w6-growth", "W6: growth", plot.lines(
        "W6: latency as the table grows", "µs", "keys", curves, log=True))
    bench.report.in_short(
        "growth", f"with {steps[-1]} keys reserve + complete takes"
        f" {last['reserve + complete']} × as long as with {SMALL}, a replay of"
        f" any key {last['replay']} ×")
    for dbname in ("small", "grown"):
        bench.server.drop_database(dbname)


def fill(server, held, keys):
    """Keys up to this many, by two sessions, in place of what the last step's
    pairs have left."""
    half = (held + keys) // 2
    for tidy in ("DELETE FROM idempotency_keys WHERE key LIKE 'charge:%'",
                 "VACUUM idempotency_keys"):
        server.query(tidy, dbname="grown")

    def part(first, last):
        server.query("SELECT fill(%s, %s)", (first, last), dbname="grown")

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(part, held + 1, half),
                     pool.submit(part, half + 1, keys)]:
            done.result()
    server.query("VACUUM ANALYZE idempotency_keys", dbname="grown")


def empty_small(server):
    """What was reserved and completed in it would make it large."""
    server.query("TRUNCATE idempotency_keys", dbname="small")
    server.query("SELECT fill(1, %s)", (SMALL,), dbname="small")
    server.query("VACUUM ANALYZE idempotency_keys", dbname="small")


def measure(bench, keys):
    cost = Rounds()
    for _ in range(bench.rounds):
        empty_small(bench.server)
        for work, (script, variables) in WORK.items():
            for dbname, settled in (("small", SMALL), ("grown", keys)):
                cost.add((dbname, work), 1e6 / bench.server.pgbench(
                    script, seconds=bench.seconds, dbname=dbname,
                    variables=dict(variables, keys=settled)))
    return cost


def sizes(server):
    """Bytes of table and index for each key."""
    return server.query(
        "SELECT pg_relation_size('idempotency_keys')::float8 / count(*),"
        " pg_relation_size('idempotency_keys_pkey')::float8 / count(*)"
        " FROM idempotency_keys", dbname="grown")[0]
