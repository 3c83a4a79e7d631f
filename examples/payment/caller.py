#!/usr/bin/python3
"""One caller: pays its invoices one by one, and may be killed at any time.

    caller.py without|with PORT INVOICES RESULTS

Appends to RESULTS a line for each invoice paid, and goes on from there when
it is started again.  PGHOST and friends say where the database is.
"""

import json
import os
import sys
import time

import psycopg
from psycopg.types.json import Jsonb

import pay
from charge import NotSent, Unanswered, charge


def pay_without(db, port, invoice):
    """The usual way: look whether it is paid, charge, note it down."""
    for _ in range(pay.ATTEMPTS):
        row = db.execute("SELECT receipt FROM payments WHERE invoice = %s",
                         (invoice["id"],)).fetchone()
        if row is not None:
            return row[0]
        try:
            receipt = charge(port, invoice)
        except (NotSent, Unanswered):
            time.sleep(pay.PAUSE)
            continue
        db.execute("INSERT INTO payments VALUES (%s, %s)"
                   " ON CONFLICT DO NOTHING", (invoice["id"], Jsonb(receipt)))
        return receipt
    raise pay.StillBusy(invoice["id"])


def read_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def main():
    mode, port, invoices, results = sys.argv[1:]
    pay_one = {"without": pay_without, "with": pay.pay}[mode]
    paid = {receipt["id"] for receipt in read_lines(results)}

    # unbuffered, so that a line is there as a whole or not at all
    out = os.open(results, os.O_WRONLY | os.O_APPEND)
    with psycopg.connect(autocommit=True) as db:
        for invoice in read_lines(invoices):
            if invoice["id"] not in paid:
                receipt = pay_one(db, int(port), invoice)
                os.write(out, json.dumps(receipt).encode() + b"\n")


main()
