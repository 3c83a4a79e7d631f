"""What the probes of Python's drivers share: an observer, and rows of a table.

A row is printed as it stands in docs/drivers.md.
"""

import sys
import time

import psycopg

PATIENCE = 30       # seconds after which something must be stuck


def row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


class Observer:
    """Another session, which sees what is committed."""

    def __init__(self):
        self.db = psycopg.connect(autocommit=True)

    def value(self, query, *arguments):
        return self.db.execute(query, arguments).fetchone()[0]

    def committed(self, key):
        there = self.value("SELECT count(*) FROM idem_lookup(%s)", key)
        return "committed" if there else "not committed"

    def token(self, key):
        """Reserve a key; return its token."""
        return self.value("SELECT token FROM idem_reserve(%s)", key)

    def recorded(self, key):
        return self.value("SELECT coalesce('`' || result::text || '`', 'SQL NULL')"
                          " FROM idem_lookup(%s)", key)

    def lease(self, key):
        return self.value("SELECT extract(epoch FROM expires_at - reserved_at)"
                          "::integer || ' s' FROM idem_lookup(%s)", key)

    def rival(self, key):
        """A connection whose open transaction has the key."""
        rival = psycopg.connect()
        rival.execute("SELECT idem_reserve(%s)", (key,))
        return rival

    def wait_for_calls(self, number):
        """Wait until this many calls wait in the server."""
        deadline = time.monotonic() + PATIENCE
        while self.value(
                "SELECT count(*) FROM pg_stat_activity WHERE state = 'active'"
                " AND pid <> pg_backend_pid() AND backend_type ="
                " 'client backend' AND query LIKE '%%idem_reserve(%%'") != number:
            if time.monotonic() > deadline:
                sys.exit("nobody waits, or still does")
            time.sleep(0.01)


observer = Observer()


def outcome(call, *arguments):
    """The call's value, or what the server or the driver says against it."""
    try:
        return call(*arguments)
    except Exception as error:
        return sqlstate(error) or "the driver refuses"


def sqlstate(error):
    """Of an error of any driver, or of what an ORM has wrapped around it."""
    while error is not None:
        for name in ("sqlstate", "pgcode"):
            if getattr(error, name, None):
                return getattr(error, name)
        error = getattr(error, "orig", None) or error.__cause__
    return None


def lease(reserve, key, ttl):
    """How long a lease with this ttl is."""
    answer = outcome(reserve, key, ttl)
    return observer.lease(key) if answer == "reserved" else answer


def results(complete, key, values):
    """What is recorded of each value."""
    for n, value in enumerate(values):
        name = f"{key}:{n}"
        token = observer.token(name)
        said = outcome(complete, name, value, token)
        yield observer.recorded(name) if said is True else said
