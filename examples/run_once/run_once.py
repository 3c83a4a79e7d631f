"""Run an action once, and let duplicates wait for it: asyncio, two phases.

This is the part to copy.  README.md explains it.
"""

import asyncio
import contextlib
import hashlib
import json
import time
from datetime import timedelta

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

from client import NotSent, Refused, Unanswered

# After these the same call again may help
RETRIED = NotSent, Unanswered, TimeoutError, psycopg.OperationalError
SLICE = 1           # seconds that a waiting call keeps its connection


class OtherRequest(Exception):
    """This key was used with another request: a bug, do not try again."""


class StillBusy(Exception):
    """Somebody is at it for longer than we wait: try again later."""


class Unresolved(Exception):
    """Nobody knows whether it ran: a person must look, not try again."""


def idem_key(operation, identity, **fields):
    """The same key as SQL's idem_key()."""
    request = json.dumps({**fields, "op": operation, "id": identity},
                         sort_keys=True, separators=(",", ":"),
                         ensure_ascii=False)
    return operation + ":" + hashlib.sha256(request.encode()).hexdigest()[:32]


async def with_retries(attempt, attempts=3, pause=0.1):
    """Await attempt() until it succeeds, at most three times."""
    for left in reversed(range(attempts)):
        try:
            return await attempt()
        except RETRIED:
            if left == 0:
                raise
        await asyncio.sleep(pause)
        pause *= 2


class RunOnce:
    """The store.

    connection() gives a connection for an async with block, and commits at its
    end, as the connection() of psycopg_pool's AsyncConnectionPool does.  At
    most so many waiters keep a connection at a time: fewer than there are.
    """

    def __init__(self, connection, waiters, scope="run_once", lease=10,
                 patience=30):
        self.connection = connection
        self.waiters = asyncio.Semaphore(waiters)
        self.scope = scope
        self.lease = timedelta(seconds=lease)
        self.patience = patience    # seconds to wait for somebody else

    async def run(self, operation, identity, request, action, ttl=None):
        """Return what action(provider_key) returned, to whomever called it.

        One attempt; an exception of the action decides whether the next may
        run at once.  The outcome is remembered for ttl.
        """
        if not identity:
            raise ValueError("no identity: all such actions would be one")
        key = idem_key(operation, identity)
        while True:
            answer = await self.reserve(key, request)
            if answer.status == "done":
                return answer.result
            if answer.status == "failed":       # by an operator
                raise Refused(answer.result)
            if answer.status == "expired":
                raise Unresolved(key)
            result = await self.act(key, answer, action)
            if await finish(self.complete(key, result, answer.token, ttl)):
                return result
            # our lease ran out, somebody else has the key: hear it from him

    async def act(self, key, won, action):
        """Run the action; if that fails, say what is known of it."""
        try:
            async with self.heartbeat(key, won.token):
                result = await action(f"{self.scope}/{key}")
                # the first caller gets what later ones will: JSON
                return json.loads(json.dumps(result))
        except Refused:
            await self.give_back("idem_release", key, won)
            raise
        except NotSent:
            await self.give_back(did_not_run(won), key, won)
            raise
        except BaseException:       # a time-out, cancelled, or a bug
            await self.give_back("idem_abandon", key, won)
            raise

    async def reserve(self, key, request):
        """Reserve the key, or wait until whoever has it has an outcome."""
        deadline = time.monotonic() + self.patience
        answer = await self.ask(key, request, 0)
        while answer.status == "in_progress":
            if time.monotonic() > deadline:
                raise StillBusy(key)
            # whoever is at it needs a connection too
            async with self.waiters:
                answer = await self.ask(key, request, SLICE)
        return answer

    async def ask(self, key, request, wait):
        asking = asyncio.ensure_future(self.fetch(
            "SELECT status, result, token, maybe_ran FROM idem_reserve("
            "%s, ttl => %s, request => %s, wait => %s, scope => %s)",
            (key, self.lease, Jsonb(request), timedelta(seconds=wait),
             self.scope)))
        try:
            return await finish(asking)
        except psycopg.DatabaseError as error:
            if error.sqlstate == "IK001":
                raise OtherRequest(key) from error
            raise
        except asyncio.CancelledError:
            # the key may have become ours all the same
            if not asking.cancelled() and asking.exception() is None:
                answer = asking.result()
                if answer.status == "reserved":
                    await self.give_back(did_not_run(answer), key, answer)
            raise

    @contextlib.asynccontextmanager
    async def heartbeat(self, key, token):
        """Extend the lease for as long as the block lasts."""
        stop = asyncio.Event()
        beating = asyncio.create_task(self.beat(key, token, stop))
        try:
            yield
        finally:
            # not cancelled: an extension under way would undo an abandon
            stop.set()
            await finish(beating)

    async def beat(self, key, token, stop):
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(),
                                       self.lease.total_seconds() / 3)
                return
            # a failure shows when the outcome is recorded
            with contextlib.suppress(psycopg.DatabaseError):
                await self.fetch(
                    "SELECT idem_extend(%s, %s, %s, %s)",
                    (key, self.lease, token, self.scope))

    async def complete(self, key, result, token, ttl):
        """Record the result for all later callers; False: we are too late."""
        statement = ("SELECT idem_complete(%s, %s, %s, %s, %s)",
                     (key, Jsonb(result), token, ttl, self.scope))
        try:
            try:
                await self.fetch(*statement)
            except psycopg.OperationalError:
                # perhaps the connection was old: doing it twice is harmless
                await self.fetch(*statement)
        except psycopg.DatabaseError as error:
            if error.sqlstate == "IK002":
                return False
            raise
        return True

    async def give_back(self, function, key, won):
        """End the lease now.  If that fails it ends by itself."""
        with contextlib.suppress(psycopg.OperationalError):
            await finish(self.fetch(f"SELECT {function}(%s, %s, %s)",
                                    (key, won.token, self.scope)))

    async def fetch(self, statement, values):
        async with self.connection() as db:
            cursor = db.cursor(row_factory=namedtuple_row)
            await cursor.execute(statement, values)
            return await cursor.fetchone()


def did_not_run(won):
    """What to call if this attempt certainly had no effect."""
    return "idem_abandon" if won.maybe_ran else "idem_release"


async def finish(awaitable):
    """Await it to its end, even if we are cancelled meanwhile."""
    task = asyncio.ensure_future(awaitable)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
