#!/usr/bin/python3
"""Execute a plan, or go on with it after a crash: executor.py PORT RUN

PORT is the provider's; PGHOST and friends say where the database is.  This is
the part to copy: idem_tool in two phases, for each step.  README.md explains.
"""

import json
import sys
import time

import psycopg
from psycopg.types.json import Jsonb

from client import NotSent, Refused, Unanswered, post

SCOPE = "plans"
LEASE = "10 s"      # longer than one request may take
WAIT = "15 s"       # longer than a lease: whoever died is outlived
TIMEOUT = 2
ATTEMPTS = 5
PAUSE = 0.1         # seconds between attempts

# what a plan may name, and how the provider calls it
TOOLS = {"order": "orders", "charge": "charges", "ship": "shipments",
         "mail": "mails"}


class PlanChanged(Exception):
    """Another action was planned under this number before: a bug."""


class Unacceptable(Exception):
    """What is recorded is no receipt for this step: a person must look."""


class Unresolved(Exception):
    """Nobody knows whether it ran: a person must look, not try again."""


class StillBusy(Exception):
    """No outcome yet: execute the run again later."""


def execute(db, port, run):
    """Go through all steps; return their receipts.

    Steps that were done before are answered from memory.
    """
    receipts = {}
    steps = db.execute("SELECT step, key, tool, args FROM plan"
                       " WHERE run = %s ORDER BY step", (run,)).fetchall()
    for step, key, tool, args in steps:
        request = {"tool": tool, "args": args}
        body = fill_in(args, receipts)
        receipts[step] = perform(db, port, key, request, TOOLS[tool], body)
    return receipts


def fill_in(args, receipts):
    """Replace {"step": n} by the number on that step's receipt."""
    return {name: receipts[value["step"]]["number"]
            if isinstance(value, dict) else value
            for name, value in args.items()}


def acceptable(receipt, body):
    """A receipt for what was asked, with the number that later steps need?"""
    return (isinstance(receipt, dict)
            and isinstance(receipt.get("number"), str)
            and all(receipt.get(name) == body[name] for name in body))


def perform(db, port, key, request, action, body):
    """Return the receipt of the one time that this step was done."""
    # the reservation must be committed before the effect
    assert db.autocommit
    for _ in range(ATTEMPTS):
        status, result, token, maybe_ran = reserve(db, key, request)
        if status == "done":
            if not acceptable(result, body):
                raise Unacceptable(key, result)
            return result
        if status == "failed":
            raise Refused(result)
        if status == "expired":
            raise Unresolved(key)
        if status == "in_progress":
            continue

        # "reserved": we, and for the time of the lease nobody else
        try:
            receipt = post(port, action, body, f"{SCOPE}/{key}", TIMEOUT)
            if not acceptable(receipt, body):
                raise Unanswered(receipt)
        except NotSent:
            # that is true of this attempt; an earlier one may have run
            give_back(db, "idem_abandon" if maybe_ran else "idem_release",
                      key, token)
        except Refused as refusal:
            if settle(db, "idem_fail", key, token, refusal.args[0]):
                raise
        except Unanswered:
            give_back(db, "idem_abandon", key, token)
        else:
            if settle(db, "idem_complete", key, token, receipt):
                return receipt
        time.sleep(PAUSE)
    raise StillBusy(key)


def reserve(db, key, request):
    """Reserve the step, or hear its outcome; wait for whoever is at it."""
    try:
        return db.execute(
            "SELECT status, result, token, maybe_ran FROM idem_reserve("
            "%s, ttl => %s, request => %s, wait => %s, scope => %s)",
            (key, LEASE, Jsonb(request), WAIT, SCOPE)).fetchone()
    except psycopg.DatabaseError as error:
        if error.sqlstate == "IK001":
            raise PlanChanged(key) from error
        raise


def settle(db, function, key, token, outcome):
    """Record the outcome for ever; False: somebody else has the step now."""
    try:
        db.execute(f"SELECT {function}(%s, %s, %s, '100 years', %s)",
                   (key, Jsonb(outcome), token, SCOPE))
    except psycopg.DatabaseError as error:
        if error.sqlstate == "IK002":
            return False
        raise
    return True


def give_back(db, function, key, token):
    db.execute(f"SELECT {function}(%s, %s, %s)", (key, token, SCOPE))


def main():
    port, run = sys.argv[1:]
    with psycopg.connect(autocommit=True) as db:
        print(json.dumps(execute(db, int(port), run)))


if __name__ == "__main__":
    main()
