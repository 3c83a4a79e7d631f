"""Django over psycopg2"""

import datetime
import os

import django
from django.conf import settings
from django.db import connection, transaction

from facts import lease, observer, outcome, results, row

NAME = "Django"
print("#", NAME, django.get_version())
settings.configure(DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql", "HOST": os.environ["PGHOST"],
    "PORT": os.environ.get("PGPORT", ""), "USER": os.environ["PGUSER"],
    "NAME": os.environ["PGDATABASE"]}})
django.setup()


def value(query, arguments=()):
    with connection.cursor() as cursor:
        cursor.execute(query, arguments)
        return cursor.fetchone()[0]


def reserve(key, ttl=None, **more):
    named = "".join(f", {name} => %s" for name in more)
    return value(f"SELECT status FROM idem_reserve(%s, %s{named})",
                 (key, ttl, *more.values()))


reserve("dj:plain")
seen = observer.committed("dj:plain")
alone = outcome(lambda: reserve("dj:two", two_phase=True))


def in_transaction():
    with transaction.atomic():
        return reserve("dj:block", two_phase=True)


row("transactions", NAME, seen, alone, outcome(in_transaction),
    "`ATOMIC_REQUESTS` off")


def complete(key, result, token):
    return value("SELECT idem_complete(%s, %s, %s)", (key, result, token))


from psycopg2.extras import Json        # noqa: E402  the driver's below

raw = list(results(complete, "dj:raw", [{"a": 1}, [1, 2], "ok"]))
wrapped = list(results(lambda k, v, t: complete(k, Json(v), t), "dj:json",
                       [{"a": 1}, [1, 2], "ok", "a\0b"]))
assert wrapped[:3] == ['`{"a": 1}`', "`[1, 2]`", '`"ok"`']
back = value("SELECT result FROM idem_reserve('dj:json:0')")
row("jsonb", NAME, *raw, wrapped[3], type(back).__name__,
    "the driver's `Json(value)`")

token = value("SELECT token FROM idem_reserve('dj:token')")
row("times", NAME, "timedelta",
    lease(reserve, "dj:5min", datetime.timedelta(minutes=5)),
    lease(reserve, "dj:300", 300), lease(reserve, "dj:text", "5 min"),
    type(token).__name__, outcome(complete, "dj:token", None, None))


def fail():
    with transaction.atomic():
        reserve("dj:fails")
        raise ValueError


outcome(fail)
assert observer.committed("dj:fails") == "not committed"


# a block within a block is a savepoint: its reservation goes with it
def fail_inside():
    with transaction.atomic():
        reserve("dj:outer")
        outcome(lambda: nested())
        complete("dj:outer", None, 0)


def nested():
    with transaction.atomic():
        reserve("dj:inner")
        raise ValueError


fail_inside()
assert observer.committed("dj:inner") == "not committed"
assert observer.recorded("dj:outer") == "SQL NULL"
