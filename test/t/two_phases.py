"""README.md's two phases, against a provider that fails in each way it can.

    two_phases.py BLOCK DATABASE OBSERVER

BLOCK is a file with README.md's code, of which nothing but the two addresses is
replaced.  DATABASE is where it connects to, OBSERVER the same as a superuser.
Prints a line "ok - ..." or "not ok - ..." for each test.
"""

import pathlib
import sys
import threading

import psycopg
import requests

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "examples/common"))

from world import World, wait_until  # noqa: E402

# What becomes of the first requests, and how it ends
CASES = [
    ([], "charged"),
    (["declined"], "declined"),
    (["broken"], "charged"),            # 500, after the charge
    (["unavailable"], "charged"),       # 503, before it
    (["busy"], "charged"),
    (["conflict"], "charged"),
    (["unauthorized"], "charged"),
    (["lost"], "charged"),
    (["late"], "charged"),              # a time-out
    (["broken", "lost", "busy", "conflict", "unavailable", "unauthorized",
      "declined"], "charged"),
    (["unauthorized", "busy", "unavailable", "conflict", "declined"],
     "declined"),
]
ENDINGS = {"charged": ("done", 1), "declined": ("failed", 0)}

code, database, observer = sys.argv[1:]
printing = threading.Lock()


def ok(condition, name):
    with printing:
        print("ok" if condition else "not ok", "-", name, flush=True)


def is_(is_, expected, name):
    ok(is_ == expected,
       name if is_ == expected else f"{name}: {is_!r}, not {expected!r}")


def readme(world):
    """What README.md defines, with its addresses replaced."""
    names = {}
    exec(pathlib.Path(code).read_text(encoding="utf-8"), names)
    names["DATABASE"] = database
    names["PROVIDER"] = f"http://127.0.0.1:{world.port}/charges"
    return names


def attempt(names, invoice):
    """What one caller comes to: charged, declined, or an error's name."""
    try:
        return "charged", names["charge"](invoice, 4200)
    except names["PaymentRefused"] as refused:
        return "declined", refused.args[0]
    except (names["TryLater"], requests.RequestException) as error:
        return type(error).__name__, None


def status_of(invoice):
    with psycopg.connect(observer) as db:
        return db.execute("SELECT status FROM idem.idem_lookup(%s)",
                          (f"charge:{invoice}",)).fetchone()[0]


def try_case(number, fates, ending):
    """The callers of one invoice, one after the other, to the end."""
    world = World()
    names, invoice = readme(world), f"inv_{number}"
    about = ", ".join(fates) or "no failure"
    status, charges = ENDINGS[ending]
    failures = len(fates) - (fates[-1:] == ["declined"])

    world.next(*fates)
    for _ in range(failures):
        heard, _ = attempt(names, invoice)
        ok(heard not in ENDINGS, f"{about}: {heard}")
        is_(status_of(invoice), "expired", f"{about}: ... nobody knows")
    first = attempt(names, invoice)
    is_(first[0], ending, f"{about}: how it ends")
    is_(attempt(names, invoice), first, f"{about}: ... for everybody")
    is_(status_of(invoice), status, f"{about}: ... as recorded")
    is_(len(world.effects()), charges, f"{about}: charges")
    world.close()


def try_two_callers():
    """A duplicate comes while the first one's charge is under way."""
    world = World()
    names, heard = readme(world), []

    def caller():
        heard.append(attempt(names, "inv_both"))

    threads = [threading.Thread(target=caller) for _ in range(2)]
    world.next("held")
    threads[0].start()
    wait_until(world.ledger)
    threads[1].start()
    with psycopg.connect(observer, autocommit=True) as db:
        wait_until(lambda: db.execute(
            "SELECT pid FROM pg_stat_activity WHERE state = 'active'"
            " AND wait_event_type IS NOT NULL AND pid <> pg_backend_pid()"
            " AND query LIKE '%idem_reserve%'").fetchone())
    requests.post(names["PROVIDER"].replace("charges", "release"), json={},
                  timeout=60)
    for thread in threads:
        thread.join()
    is_(heard, [("charged", world.effects()[0]["receipt"])] * 2,
        "two callers: both hear of the charge")
    is_(len(world.ledger()), 1, "two callers: one request")
    world.close()


def main():
    cases = [threading.Thread(target=try_case, args=(number, *case))
             for number, case in enumerate(CASES)]
    for thread in cases:
        thread.start()
    for thread in cases:
        thread.join()
    try_two_callers()


main()
