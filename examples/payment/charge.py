"""The provider's client: the same as in all examples.  Adapt it to yours."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "common"))

from client import NotSent, Refused, Unanswered, post

TIMEOUT = 0.3       # seconds that the provider has to answer


def charge(port, invoice, idempotency_key=None):
    """Return the receipt, or raise one of the three exceptions."""
    return post(port, "charges", invoice, idempotency_key, TIMEOUT)
