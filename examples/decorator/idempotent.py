"""@idempotent for tools that change something: idem_tool in two phases.

This is the part to copy.  README.md explains it.
"""

import functools
import inspect
import json
from urllib.parse import quote

import psycopg
from psycopg.types.json import Jsonb

from client import NotSent, Refused


class KeyRequired(TypeError):
    """The tool was called without a key: a bug in the calling program."""


class OtherRequest(Exception):
    """This key was used with other arguments: a bug, do not try again."""


class InFlight(Exception):
    """Somebody is at it: the same call again, after retry_after seconds."""

    def __init__(self, key, retry_after):
        super().__init__(f"{key} is in progress, try again in {retry_after} s")
        self.retry_after = retry_after


class Unresolved(Exception):
    """Nobody knows whether it ran: a person must look, not try again."""


class Idempotent:
    """Makes the decorator.

    connection() gives a connection for a with block, and commits at its end:
    psycopg_pool's pool.connection, or a function that calls psycopg.connect.
    No connection is held while the tool runs.
    """

    def __init__(self, connection, scope="tools", lease="1 minute"):
        self.connection = connection
        self.scope = scope
        self.lease = lease      # longer than a tool may run

    def __call__(self, ttl, fallback_ttl=None):
        """Decorate a tool; ttl: how long its outcome is remembered.

        The tool takes keyword argument provider_key, to hand on; its callers
        pass key instead.  With fallback_ttl they may leave it out: equal calls
        within that time are then one.
        """
        def decorate(tool):
            signature = inspect.signature(tool)
            visible = [parameter for name, parameter
                       in signature.parameters.items()
                       if name != "provider_key"]
            assert len(visible) < len(signature.parameters)
            # what an agent may fill in: neither of the two keys
            signature = signature.replace(parameters=visible)

            @functools.wraps(tool)
            def wrapper(*args, key=None, **kwargs):
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                keep = ttl
                if key is None:
                    if fallback_ttl is None:
                        raise KeyRequired(f"{tool.__name__} needs a key")
                    keep = fallback_ttl
                return self.run(tool, bound, key, keep)

            wrapper.__signature__ = signature
            return wrapper
        return decorate

    def run(self, tool, call, key, ttl):
        """Call the tool, or say what has become of an earlier call."""
        key, status, result, token, maybe_ran, retry_after = self.reserve(
            tool.__name__, call.arguments, key)
        if status == "done":
            return result
        if status == "failed":
            raise Refused(result)
        if status == "expired":
            raise Unresolved(key)
        if status == "in_progress":
            raise InFlight(key, retry_after)

        # "reserved": we, and for the time of the lease nobody else
        try:
            result = tool(*call.args, **call.kwargs,
                          provider_key=quote(f"{self.scope}/{key}", "/:"))
            # the first caller gets what later ones will: JSON
            result = json.loads(json.dumps(result))
        except NotSent:
            # that is true of this attempt; an earlier one may have run
            self.give_back("idem_abandon" if maybe_ran else "idem_release",
                           key, token)
            raise
        except Refused as refusal:
            self.record("idem_fail", key, refusal.args[0], token, ttl)
            raise
        except BaseException:
            self.give_back("idem_abandon", key, token)
            raise
        # outside the try: it ran, nothing may free the key any more
        self.record("idem_complete", key, result, token, ttl)
        return result

    def reserve(self, name, arguments, key):
        """Commit a reservation, or hear why there is none."""
        request = {"tool": name, "args": arguments}
        try:
            with self.connection() as db:
                return db.execute(
                    "SELECT k, status, result, token, maybe_ran, retry_after"
                    " FROM coalesce(%s, idem_call_key(%s, %s)) AS k,"
                    " idem_reserve(k, ttl => %s, request => %s, scope => %s)",
                    (key, name, Jsonb(arguments), self.lease, Jsonb(request),
                     self.scope)).fetchone()
        except psycopg.DatabaseError as error:
            if error.sqlstate == "IK001":
                raise OtherRequest(key) from error
            raise

    def record(self, function, key, outcome, token, ttl):
        """Record the outcome for all later callers."""
        statement = f"SELECT {function}(%s, %s, %s, ttl => %s, scope => %s)"
        values = key, Jsonb(outcome), token, ttl, self.scope
        try:
            try:
                self.execute(statement, values)
            except psycopg.OperationalError:
                # perhaps the connection was old: doing it twice is harmless
                self.execute(statement, values)
        except psycopg.DatabaseError as error:
            # our lease ran out and another caller has the key now; he hears
            # the same from the provider, who has seen the key
            if error.sqlstate == "IK002":
                raise InFlight(key, 1) from error
            raise

    def give_back(self, function, key, token):
        """End the lease now.  If that fails it ends by itself."""
        try:
            self.execute(f"SELECT {function}(%s, %s, %s)",
                         (key, token, self.scope))
        except psycopg.OperationalError:
            pass

    def execute(self, statement, values):
        with self.connection() as db:
            db.execute(statement, values)
