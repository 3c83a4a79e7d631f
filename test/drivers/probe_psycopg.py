"""psycopg 3"""

import datetime

import psycopg
from psycopg.types.json import Jsonb

from facts import lease, observer, outcome, results, row

NAME = "psycopg"
print("#", NAME, psycopg.__version__)


def reserve(db, key, ttl=None, **more):
    named = "".join(f", {name} => %s" for name in more)
    return db.execute(f"SELECT status FROM idem_reserve(%s, %s{named})",
                      (key, ttl, *more.values())).fetchone()[0]


plain = psycopg.connect()
reserve(plain, "p3:plain")
seen = observer.committed("p3:plain")
plain.rollback()
refused = outcome(lambda: reserve(plain, "p3:two", two_phase=True))
plain.rollback()
db = psycopg.connect(autocommit=True)
assert reserve(db, "p3:auto", two_phase=True) == "reserved"


def in_transaction():
    with db.transaction():
        return reserve(db, "p3:block", two_phase=True)


row("transactions", NAME, seen, refused, outcome(in_transaction),
    "`autocommit=True`")


def complete(key, value, token):
    return db.execute("SELECT idem_complete(%s, %s, %s)",
                      (key, value, token)).fetchone()[0]


raw = list(results(complete, "p3:raw", [{"a": 1}, [1, 2], "ok"]))
wrapped = list(results(lambda k, v, t: complete(k, Jsonb(v), t), "p3:jsonb",
                       [{"a": 1}, [1, 2], "ok", "a\0b"]))
assert wrapped[:3] == ['`{"a": 1}`', "`[1, 2]`", '`"ok"`']
back = db.execute("SELECT result FROM idem_reserve('p3:jsonb:0')").fetchone()[0]
row("jsonb", NAME, *raw, wrapped[3], type(back).__name__, "`Jsonb(value)`")

token = db.execute("SELECT token FROM idem_reserve('p3:token')").fetchone()[0]
row("times", NAME, "timedelta",
    lease(lambda *a: reserve(db, *a), "p3:5min", datetime.timedelta(minutes=5)),
    lease(lambda *a: reserve(db, *a), "p3:300", 300),
    lease(lambda *a: reserve(db, *a), "p3:text", "5 min"),
    type(token).__name__, outcome(complete, "p3:token", None, None))

# a statement_timeout is the server's: nothing goes on
rival = observer.rival("p3:late")
db.execute("SET statement_timeout = '200ms'")
said = outcome(lambda: reserve(db, "p3:late", wait="1 min"))
observer.wait_for_calls(0)
rival.rollback()
row("time-outs", NAME, "`statement_timeout`", said,
    observer.committed("p3:late"))
