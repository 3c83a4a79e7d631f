"""Ask the provider for a charge; tell apart the four ways this can end."""

import http.client
import json

TIMEOUT = 0.3       # seconds that the provider has to answer


class NotSent(Exception):
    """The request never left: certainly no charge."""


class Refused(Exception):
    """The provider has decided, and said no: certainly no charge."""


class Unanswered(Exception):
    """No answer, or one that decides nothing: maybe a charge."""


def charge(port, invoice, idempotency_key=None):
    """Return the receipt, or raise one of the above."""
    headers = {}
    if idempotency_key is not None:
        headers["Idempotency-Key"] = idempotency_key
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        connection.connect()
    except OSError as error:
        raise NotSent from error
    try:
        connection.request("POST", "/charges", json.dumps(invoice), headers)
        response = connection.getresponse()
        status, body = response.status, json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unanswered from error
    finally:
        connection.close()

    if status == 402:
        raise Refused(body)
    if status != 200:
        raise Unanswered(f"HTTP status {status}")
    return body
