"""Charge an invoice exactly once: idem_tool in two phases.

This is the part to copy.  README.md explains the order of the steps.
"""

import time

import psycopg
from psycopg.types.json import Jsonb

from charge import NotSent, Refused, Unanswered, charge

SCOPE = "payments"
LEASE = "2 s"       # longer than one request may take
WAIT = "3 s"        # a duplicate waits for the first: longer than a lease
PAUSE = 0.05        # seconds between attempts
ATTEMPTS = 100


class Unresolved(Exception):
    """Nobody knows whether it was charged: a person must look."""


class StillBusy(Exception):
    """No outcome yet: answer 409 or 503, the client may ask again."""


def pay(db, port, invoice):
    """Return the receipt of the one charge of this invoice.

    The reservation must be committed before the charge begins, hence the
    connection in autocommit mode, outside any transaction.
    """
    assert db.autocommit
    key = f"charge:{invoice['id']}"

    for _ in range(ATTEMPTS):
        status, result, token, maybe_ran = db.execute(
            "SELECT status, result, token, maybe_ran FROM idem_reserve("
            "%s, ttl => %s, request => %s, wait => %s, scope => %s)",
            (key, LEASE, Jsonb(invoice), WAIT, SCOPE)).fetchone()

        if status == "done":
            return result
        if status == "failed":
            raise Refused(result)
        if status == "expired":
            raise Unresolved(key)
        if status == "in_progress":
            continue

        # "reserved": we, and for the time of the lease nobody else
        try:
            receipt = charge(port, invoice, f"{SCOPE}/{key}")
        except NotSent:
            # that is true of this attempt; an earlier one may have charged
            give_back = "idem_abandon" if maybe_ran else "idem_release"
            db.execute(f"SELECT {give_back}(%s, token => %s, scope => %s)",
                       (key, token, SCOPE))
        except Refused as refusal:
            if settle(db, "idem_fail", key, token, refusal.args[0]):
                raise
        except Unanswered:
            db.execute("SELECT idem_abandon(%s, token => %s, scope => %s)",
                       (key, token, SCOPE))
        else:
            if settle(db, "idem_complete", key, token, receipt):
                return receipt
        time.sleep(PAUSE)

    raise StillBusy(key)


def settle(db, function, key, token, outcome):
    """Record the outcome for all later callers; False: we came too late."""
    try:
        db.execute(f"SELECT {function}(%s, %s, token => %s, scope => %s)",
                   (key, Jsonb(outcome), token, SCOPE))
    except psycopg.DatabaseError as error:
        # our lease ran out and another caller has the key now; he hears the
        # same from the provider, and we hear it from him
        if error.sqlstate == "IK002":
            return False
        raise
    return True
