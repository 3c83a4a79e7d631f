"""W4 and W8: many calls in one statement."""

import time
from contextlib import contextmanager
from itertools import count

from figures import Rounds, rotated

RESULT = """'{"charge": "ch_123", "ok": true}'"""
SERIES = "generate_series(1, %(rows)s) i"
# than the same in PL/pgSQL; twice as fast where it is not said
FASTER = {"reserve": 1, "tool, new key": 1.05}
serial = count()

# Each name has its statements, one transaction of them; each is timed for
# itself.  %(new)s begins keys that are new in each transaction.
CALLS = {
    "idem_tool": {
        "reserve": f"SELECT count(r.status) FROM {SERIES},"
                   " idem_reserve(%(new)s || i) r",
        "complete": f"SELECT count(idem_complete(%(new)s || i, {RESULT}))"
                    f" FROM {SERIES}",
        "replay": f"SELECT count(r.result) FROM {SERIES},"
                  " idem_reserve('settled:' || i %% 100 + 1) r",
        "replay, any key": f"SELECT count(r.result) FROM {SERIES},"
            " idem_reserve('settled:' || i * 7919 %% %(keys)s + 1) r",
        "tool, new key": "SELECT count(tool_idem(%(new)s || 'tool' || i))"
                         f" FROM {SERIES}",
        "tool, replay": "SELECT count(tool_idem('settled:' || i %% 100 + 1))"
                        f" FROM {SERIES}",
    },
    "PL/pgSQL": {
        "reserve": f"SELECT count(r.won) FROM {SERIES},"
                   " hand_reserve(%(new)s || i) r",
        "complete": f"SELECT count(hand_complete(%(new)s || i, {RESULT}))"
                    f" FROM {SERIES}",
        "replay": f"SELECT count(r.outcome) FROM {SERIES},"
                  " hand_reserve('settled:' || i %% 100 + 1) r",
        "replay, any key": f"SELECT count(r.outcome) FROM {SERIES},"
            " hand_reserve('settled:' || i * 7919 %% %(keys)s + 1) r",
        "tool, new key": "SELECT count(tool_hand(%(new)s || 'tool' || i))"
                         f" FROM {SERIES}",
        "tool, replay": "SELECT count(tool_hand('settled:' || i %% 100 + 1))"
                        f" FROM {SERIES}",
    },
    "INSERT … SELECT": {
        "INSERT": "INSERT INTO idempotency_keys (key, owner, created_at,"
                  " reserved_at, token, attempt, maybe_ran, expires_at, status)"
                  " SELECT %(new)s || i, current_user, now(), now(),"
                  " nextval('idempotency_keys_token_seq'), 1, false,"
                  f" now() + interval '5 min', 'in_progress' FROM {SERIES}",
    },
}


@contextmanager
def alone(bench):
    """A connection that shares one core with its server."""
    with bench.server.on_one_core(), bench.server.connect("bench") as db:
        yield db


def in_database(bench):
    """W4"""
    bench.report.section("W4: inside the database")
    rows = 5000 if bench.quick else 20000
    bench.report.text(
        f"µs a call, {rows} in one statement: `FROM generate_series(…) i,"
        " idem_reserve(… || i)`. PL/pgSQL: the same with a function that has"
        " the SQL by hand. Tool: a PL/pgSQL function that reserves, completes"
        " and returns the result, with idem_tool or with SQL by hand."
        " The floor is what the executor takes for one row of INSERT … SELECT,"
        " the same row into the same table.")
    cost = Rounds()
    for turn in range(bench.rounds):
        for name in rotated(CALLS, turn):
            with alone(bench) as db:
                # catalogs and plans are warm
                list(transaction(bench, db, name, 100))
                for call, seconds in transaction(bench, db, name, rows):
                    cost.add((name, call), seconds / rows * 1e6)
    floor = cost["INSERT … SELECT", "INSERT"]
    table = [("a row of INSERT … SELECT", floor.text(), "", "", "")]
    for call in CALLS["idem_tool"]:
        mine, peer = cost["idem_tool", call], cost["PL/pgSQL", call]
        table.append((call, mine.text(), f"{mine.over(floor).text()} ×",
                      peer.text(), f"{peer.over(mine).text()} ×"))
        bench.report.target("W4", f"{call}: PL/pgSQL against it",
                            FASTER.get(call, 2), peer.over(mine).median,
                            least=True)
    bench.report.table(("µs", "idem_tool", "against INSERT … SELECT",
                        "PL/pgSQL", "idem_tool is faster"), table)
    for call, limit in (("reserve", 1.85), ("complete", 1), ("replay", 0.6),
                        ("replay, any key", 0.6)):
        bench.report.target(
            "W4", f"{call} against a row of INSERT … SELECT", limit,
            cost["idem_tool", call].over(floor).median)


def transaction(bench, db, name, rows):
    """Seconds that each of the statements takes."""
    values = dict(rows=rows, keys=bench.keys, new=f"inside {next(serial)} ")
    with db.transaction():
        for call, statement in CALLS[name].items():
            start = time.perf_counter()
            db.execute(statement, values, prepare=False)
            yield call, time.perf_counter() - start


def batches(bench):
    """W8"""
    bench.report.section("W8: batches")
    bench.report.text(
        "1000 new keys, reserved and then completed, from a client in"
        " Python. One statement: `FROM unnest($1::text[]) k, idem_reserve(k,"
        " …)`, and the same for `idem_complete`. Pipeline: 1000 prepared"
        " calls without waiting for each answer, in one transaction;"
        " executemany: psycopg's own way to do that. By hand:"
        " INSERT … SELECT FROM unnest … ON CONFLICT DO NOTHING, and one"
        " UPDATE.")
    speed = Rounds()
    for turn in range(bench.rounds):
        for name in rotated(BATCHES, turn):
            keys = [f"batch {next(serial)} {i}" for i in range(1000)]
            with alone(bench) as db:
                # the session and its plans are warm
                BATCHES[name](db, [f"warm {key}" for key in keys])
                start = time.perf_counter()
                BATCHES[name](db, keys)
                speed.add(name, len(keys) / (time.perf_counter() - start))
    single = speed["single calls"]
    bench.report.table(
        ("batches of 1000", "keys per second", "against single calls"),
        [(name, speed[name].text(), f"{speed[name].over(single).text()} ×")
         for name in BATCHES])
    bench.report.target("W8", "one statement against the batch by hand", 0.9,
                        speed["one statement"].over(speed["by hand"]).median,
                        least=True)


def one_statement(db, keys):
    tokens = [token for token, in db.execute(
        "SELECT r.token FROM unnest(%s::text[]) WITH ORDINALITY AS u(k, n),"
        " idem_reserve(k, '5 min') r ORDER BY n", (keys,))]
    check(db.execute(
        f"SELECT count(*) FROM unnest(%s::text[], %s::bigint[]) AS u(k, t)"
        f" WHERE idem_complete(k, {RESULT}, t)", (keys, tokens)), keys)


def single_calls(db, keys):
    for key in keys:
        [token] = db.execute("SELECT token FROM idem_reserve(%s, '5 min')",
                             (key,), prepare=True).fetchone()
        db.execute(f"SELECT idem_complete(%s, {RESULT}, %s)", (key, token),
                   prepare=True)


def pipelined(db, keys):
    with db.pipeline():
        cursors = [db.execute("SELECT token FROM idem_reserve(%s, '5 min')",
                              (key,), prepare=True) for key in keys]
        tokens = [cursor.fetchone()[0] for cursor in cursors]
    with db.pipeline():
        for key, token in zip(keys, tokens):
            db.execute(f"SELECT idem_complete(%s, {RESULT}, %s)",
                       (key, token), prepare=True)


def many(db, keys):
    with db.cursor() as cursor:
        cursor.executemany("SELECT token FROM idem_reserve(%s, '5 min')",
                           [(key,) for key in keys], returning=True)
        tokens = [cursor.fetchone()[0]]
        while cursor.nextset():
            tokens += cursor.fetchone()
        cursor.executemany(f"SELECT idem_complete(%s, {RESULT}, %s)",
                           list(zip(keys, tokens)))


def by_hand(db, keys):
    db.execute("INSERT INTO by_hand (key, status, expires_at) SELECT k,"
               " 'in_progress', now() + interval '5 min'"
               " FROM unnest(%s::text[]) k ON CONFLICT DO NOTHING"
               " RETURNING key", (keys,)).fetchall()
    done = db.execute(
        "UPDATE by_hand SET status = 'done', completed_at = now(),"
        f" expires_at = now() + interval '1 day', result = {RESULT}"
        " WHERE key = ANY(%s) AND status = 'in_progress'", (keys,))
    assert done.rowcount == len(keys)


def check(cursor, keys):
    assert cursor.fetchone() == (len(keys),)


# another way to do it is one more line
BATCHES = {
    "single calls": single_calls,
    "pipeline": pipelined,
    "executemany": many,
    "one statement": one_statement,
    "by hand": by_hand,
}
