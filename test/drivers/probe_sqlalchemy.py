"""SQLAlchemy over psycopg2"""

import datetime

import sqlalchemy
from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import JSONB

from facts import lease, observer, outcome, results, row

NAME = "SQLAlchemy"
print("#", NAME, sqlalchemy.__version__)


def reserve(db, key, ttl=None, **more):
    named = "".join(f", {name} => :{name}" for name in more)
    return db.execute(text(f"SELECT status FROM idem_reserve(:k, :ttl{named})"),
                      dict(k=key, ttl=ttl, **more)).scalar()


# future: as SQLAlchemy 2 does
engine = sqlalchemy.create_engine("postgresql+psycopg2://", future=True)
auto = engine.execution_options(isolation_level="AUTOCOMMIT")
with engine.connect() as plain:
    reserve(plain, "sa:plain")
    seen = observer.committed("sa:plain")
    plain.rollback()
    refused = outcome(lambda: reserve(plain, "sa:two", two_phase=True))
with auto.connect() as db:
    assert reserve(db, "sa:auto", two_phase=True) == "reserved"


def in_transaction():
    with engine.begin() as db:
        return reserve(db, "sa:block", two_phase=True)


row("transactions", NAME, seen, refused, outcome(in_transaction),
    '`isolation_level="AUTOCOMMIT"`')


def complete(key, value, token, statement=text("SELECT idem_complete(:k, :v, :t)")):
    with auto.connect() as db:
        return db.execute(statement, dict(k=key, v=value, t=token)).scalar()


typed = text("SELECT idem_complete(:k, :v, :t)").bindparams(
    bindparam("v", type_=JSONB))
raw = list(results(complete, "sa:raw", [{"a": 1}, [1, 2], "ok"]))
wrapped = list(results(lambda *a: complete(*a, typed), "sa:jsonb",
                       [{"a": 1}, [1, 2], "ok", "a\0b"]))
assert wrapped[:3] == ['`{"a": 1}`', "`[1, 2]`", '`"ok"`']
with auto.connect() as db:
    back = db.execute(text("SELECT result FROM idem_reserve('sa:jsonb:0')")).scalar()
    row("jsonb", NAME, *raw, wrapped[3], type(back).__name__,
        "`bindparam(…, type_=JSONB)`")
    token = db.execute(text("SELECT token FROM idem_reserve('sa:token')")).scalar()
    row("times", NAME, "timedelta",
        lease(lambda *a: reserve(db, *a), "sa:5min",
              datetime.timedelta(minutes=5)),
        lease(lambda *a: reserve(db, *a), "sa:300", 300),
        lease(lambda *a: reserve(db, *a), "sa:text", "5 min"),
        type(token).__name__, outcome(complete, "sa:token", None, None))


# autobegin: what an exception leaves
def fail():
    with engine.begin() as db:
        reserve(db, "sa:fails")
        raise ValueError


outcome(fail)
assert observer.committed("sa:fails") == "not committed"
with engine.connect() as db:            # closed without a commit
    reserve(db, "sa:forgotten")
assert observer.committed("sa:forgotten") == "not committed"
