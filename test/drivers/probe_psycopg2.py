"""psycopg2"""

import datetime

import psycopg2
from psycopg2.extras import Json

from facts import lease, observer, outcome, results, row

NAME = "psycopg2"
print("#", NAME, psycopg2.__version__.split()[0])


def value(db, query, arguments):
    with db.cursor() as cursor:
        cursor.execute(query, arguments)
        return cursor.fetchone()[0]


def reserve(db, key, ttl=None, **more):
    named = "".join(f", {name} => %s" for name in more)
    return value(db, f"SELECT status FROM idem_reserve(%s, %s{named})",
                 (key, ttl, *more.values()))


plain = psycopg2.connect("")
reserve(plain, "p2:plain")
seen = observer.committed("p2:plain")
plain.rollback()
refused = outcome(lambda: reserve(plain, "p2:two", two_phase=True))
plain.rollback()
db = psycopg2.connect("")
db.autocommit = True
assert reserve(db, "p2:auto", two_phase=True) == "reserved"


def in_transaction():
    with plain:                     # commits or rolls back
        return reserve(plain, "p2:block", two_phase=True)


row("transactions", NAME, seen, refused, outcome(in_transaction),
    "`connection.autocommit = True`")


def complete(key, result, token):
    return value(db, "SELECT idem_complete(%s, %s, %s)", (key, result, token))


raw = list(results(complete, "p2:raw", [{"a": 1}, [1, 2], "ok"]))
wrapped = list(results(lambda k, v, t: complete(k, Json(v), t), "p2:json",
                       [{"a": 1}, [1, 2], "ok", "a\0b"]))
assert wrapped[:3] == ['`{"a": 1}`', "`[1, 2]`", '`"ok"`']
back = value(db, "SELECT result FROM idem_reserve('p2:json:0')", ())
row("jsonb", NAME, *raw, wrapped[3], type(back).__name__, "`Json(value)`")

token = value(db, "SELECT token FROM idem_reserve('p2:token')", ())
row("times", NAME, "timedelta",
    lease(lambda *a: reserve(db, *a), "p2:5min", datetime.timedelta(minutes=5)),
    lease(lambda *a: reserve(db, *a), "p2:300", 300),
    lease(lambda *a: reserve(db, *a), "p2:text", "5 min"),
    type(token).__name__, outcome(complete, "p2:token", None, None))

rival = observer.rival("p2:late")
value(db, "SELECT set_config('statement_timeout', '200ms', false)", ())
said = outcome(lambda: reserve(db, "p2:late", wait="1 min"))
observer.wait_for_calls(0)
rival.rollback()
row("time-outs", NAME, "`statement_timeout`", said,
    observer.committed("p2:late"))
