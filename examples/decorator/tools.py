"""Tools of an agent: two that change something, and one that only reads."""

import os

import psycopg

from client import post
from idempotent import Idempotent

idempotent = Idempotent(psycopg.connect)
port = os.environ.get("PROVIDER_PORT")


@idempotent("30 days")
def charge(invoice, amount, currency="EUR", *, provider_key):
    """Charge the customer.  Never twice under one key."""
    return post(port, "charges", {"invoice": invoice, "amount": amount,
                                  "currency": currency}, provider_key)


@idempotent("1 day", fallback_ttl="10 minutes")
def remind(customer, *, provider_key):
    """Send a reminder.  Without a key: one in ten minutes."""
    return post(port, "reminders", {"customer": customer}, provider_key)


def convert(amount, rate):
    """Reads and computations need no key."""
    return amount * rate
