"""Ask the provider to act; tell apart the four ways this can end."""

import http.client
import json

TIMEOUT = 2         # seconds that the provider has to answer


class NotSent(Exception):
    """The request never left: certainly no effect of this attempt."""


class Refused(Exception):
    """The provider has decided, and said no: certainly no effect."""


class Unanswered(Exception):
    """No answer, or one that decides nothing: maybe an effect."""


def post(port, action, body, idempotency_key=None, timeout=TIMEOUT):
    """Return the receipt, or raise one of the above."""
    text = json.dumps(body)
    headers = {}
    if idempotency_key is not None:
        headers["Idempotency-Key"] = idempotency_key
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.connect()
    except OSError as error:
        raise NotSent(str(error)) from error
    try:
        connection.request("POST", "/" + action, text, headers)
        response = connection.getresponse()
        status, answer = response.status, json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unanswered(repr(error)) from error
    finally:
        connection.close()

    if status == 402:
        raise Refused(answer)
    if status != 200:
        raise Unanswered(f"HTTP status {status}")
    return answer
