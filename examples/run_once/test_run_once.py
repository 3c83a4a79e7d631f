"""Counts in the provider's ledger what has been run, and how often."""

import asyncio
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import unittest
import unittest.mock

import charge
import client
import psycopg
import world
from client import NotSent, Refused, Unanswered
from run_once import (OtherRequest, RunOnce, StillBusy, Unresolved, idem_key,
                      with_retries)

HERE = pathlib.Path(__file__).parent
REQUEST = {"invoice": "inv_1", "amount": 4200}
KEY = idem_key("charge", "inv_1")
CONNECTIONS = 3


class Pool:
    """Counts who has a connection; opens a new one for each."""

    def __init__(self):
        self.free = asyncio.Semaphore(CONNECTIONS)

    @contextlib.asynccontextmanager
    async def connection(self):
        async with self.free, charge.connection() as db:
            yield db


async def wait_until(condition):
    return await asyncio.to_thread(world.wait_until, condition)


class RunOnceTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.world = world.World()
        self.addCleanup(self.world.close)
        self.db = psycopg.connect(autocommit=True)
        self.addCleanup(self.db.close)
        self.db.execute("TRUNCATE idempotency_keys")

    async def asyncSetUp(self):
        self.once = RunOnce(Pool().connection, waiters=CONNECTIONS - 1)

    async def post(self, provider_key, port=None):
        return await asyncio.to_thread(
            client.post, port or self.world.port, "charges", REQUEST,
            provider_key, timeout=1)

    async def run_once(self, action=None, request=REQUEST):
        return await self.once.run("charge", "inv_1", request,
                                   action or self.post)

    async def run_retried(self, action=None):
        return await with_retries(lambda: self.run_once(action))

    def start(self, *args):
        task = asyncio.create_task(self.run_once(*args))
        self.addAsyncCleanup(self.stop, task)
        return task

    async def stop(self, task):
        task.cancel()
        await asyncio.wait([task])

    def lookup(self):
        """The key's status, attempt and maybe_ran."""
        return self.db.execute(
            "SELECT status, attempt, maybe_ran FROM idem_lookup(%s, %s)",
            (KEY, "run_once")).fetchone()

    def waiters(self):
        return self.db.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'active'"
            " AND datname = current_database() AND query LIKE %s",
            ("SELECT % FROM idem_reserve(%",)).fetchone()[0]

    def assert_happened(self, effects, repeats=0):
        self.assertEqual((len(self.world.effects()),
                          len(self.world.repeats())), (effects, repeats))
        self.assertLessEqual({line["key"] for line in self.world.ledger()},
                             {f"run_once/{KEY}"})

    async def test_key_is_the_database_s(self):
        for operation, identity, fields in [
                ("charge", "inv_1", {}),
                ("refund", "Ä\n\"1\"", {"amount_cents": 4200, "to": [None]})]:
            self.assertEqual(
                idem_key(operation, identity, **fields),
                self.db.execute("SELECT idem_key(%s, %s, %s)", (
                    operation, identity,
                    psycopg.types.json.Jsonb(fields))).fetchone()[0])

    async def test_second_call_returns_the_first_result(self):
        receipt = await self.run_once()
        self.assertEqual(receipt, {**REQUEST, "number": "charges_0001"})
        self.assertEqual(await self.run_once(), receipt)
        self.assert_happened(1)

    async def test_no_identity(self):
        for identity in ("", None):
            with self.assertRaises(ValueError):
                await self.once.run("charge", identity, REQUEST, self.post)
        self.assert_happened(0)

    async def test_other_request_under_the_same_key(self):
        await self.run_once()
        with self.assertRaises(OtherRequest):
            await self.run_once(request={**REQUEST, "amount": 4300})
        self.assert_happened(1)

    async def test_duplicates_wait_for_the_first(self):
        gate = asyncio.Event()

        async def action(provider_key):
            receipt = await self.post(provider_key)
            await gate.wait()
            return receipt

        # they wait for longer than we do, but leave a connection
        with unittest.mock.patch("run_once.SLICE", 15):
            tasks = [self.start(action) for _ in range(20)]
            await wait_until(lambda: self.waiters() == CONNECTIONS - 1)
            gate.set()
            receipts = await asyncio.wait_for(
                asyncio.gather(*tasks), timeout=10)
        self.assertEqual(receipts, [receipts[0]] * 20)
        self.assert_happened(1)
        self.assertEqual(self.lookup(), ("done", 1, False))

    async def test_duplicate_takes_over_what_the_first_does_not_know(self):
        self.world.next("late")
        first = self.start()
        await wait_until(self.world.ledger)
        second = self.start()
        with self.assertRaises(Unanswered):
            await first
        self.assertEqual(await second, self.world.effects()[0]["receipt"])
        self.assert_happened(1, repeats=1)
        self.assertEqual(self.lookup(), ("done", 2, False))

    async def test_patience(self):
        gate = asyncio.Event()
        first = self.start(lambda key: gate.wait())
        await wait_until(self.lookup)
        impatient = RunOnce(self.once.connection, waiters=1, patience=0)
        with self.assertRaises(StillBusy):
            await impatient.run("charge", "inv_1", REQUEST, self.post)
        gate.set()
        self.assertIs(await first, True)
        self.assert_happened(0)

    async def test_lost_answer(self):
        self.world.next("lost")
        receipt = await self.run_retried()
        self.assertEqual(receipt, self.world.effects()[0]["receipt"])
        self.assert_happened(1, repeats=1)
        self.assertEqual(self.lookup(), ("done", 2, False))

    async def test_late_answer(self):
        self.world.next("late")
        receipt = await self.run_retried(
            lambda key: asyncio.wait_for(self.post(key), 0.7))
        self.assertEqual(receipt, self.world.effects()[0]["receipt"])
        self.assert_happened(1, repeats=1)

    async def test_three_attempts(self):
        self.world.next("lost", "lost", "lost")
        with self.assertRaises(Unanswered):
            await self.run_retried()
        self.assert_happened(1, repeats=2)
        self.assertEqual(self.lookup(), ("expired", 3, True))
        await self.run_retried()
        self.assert_happened(1, repeats=3)

    async def test_unavailable(self):
        self.world.next("unavailable", "unavailable")
        await self.run_retried()
        self.assert_happened(1)

    async def test_declined_is_not_tried_again_by_itself(self):
        self.world.next("declined")
        with self.assertRaises(Refused):
            await self.run_retried()
        self.assertEqual(self.lookup(), ("released", 1, False))
        self.assert_happened(0)
        await self.run_retried()
        self.assert_happened(1)

    def closed_port(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            return free.getsockname()[1]

    async def test_not_sent(self):
        ports = iter([self.closed_port(), self.world.port])
        await self.run_retried(lambda key: self.post(key, next(ports)))
        self.assertEqual(self.lookup(), ("done", 2, False))
        self.assert_happened(1)

    async def test_not_sent_frees_the_key(self):
        port = self.closed_port()
        with self.assertRaises(NotSent):
            await self.run_once(lambda key: self.post(key, port))
        self.assertEqual(self.lookup(), ("released", 1, False))

    async def test_not_sent_after_a_lost_answer(self):
        self.world.next("lost")
        ports = iter([self.world.port] + 2 * [self.closed_port()])
        with self.assertRaises(NotSent):
            await self.run_retried(lambda key: self.post(key, next(ports)))
        # the first attempt's outcome is still unknown
        self.assertEqual(self.lookup(), ("expired", 3, True))

    async def test_too_late_to_try_again(self):
        self.world.next("lost")
        with self.assertRaises(Unanswered):
            await self.run_once()
        # a day later
        self.db.execute("UPDATE idempotency_keys"
                        " SET created_at = created_at - interval '1 day'")
        with self.assertRaises(Unresolved):
            await self.run_retried()
        self.assert_happened(1)

    async def test_bug_in_the_action(self):
        async def action(provider_key):
            await self.post(provider_key)
            return {"not": {"JSON"}}

        with self.assertRaises(TypeError):
            await self.run_retried(action)
        self.assertEqual(self.lookup(), ("expired", 1, False))
        self.assert_happened(1)

    async def test_cancelled_in_the_action(self):
        self.world.next("late")
        task = self.start()
        await wait_until(self.world.ledger)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        self.assertEqual(self.lookup(), ("expired", 1, False))
        receipt = await self.run_once()
        self.assertEqual(receipt, self.world.effects()[0]["receipt"])
        self.assert_happened(1, repeats=1)

    async def test_cancelled_while_waiting(self):
        """A key that is won for nobody is given back."""
        fail = asyncio.Event()

        async def action(provider_key):
            await fail.wait()
            raise Unanswered

        first = self.start(action)
        await wait_until(self.lookup)
        second = self.start()
        await wait_until(self.waiters)
        second.cancel()
        fail.set()
        with self.assertRaises(Unanswered):
            await first
        with self.assertRaises(asyncio.CancelledError):
            await second
        self.assertEqual(self.lookup(), ("expired", 2, True))
        self.assert_happened(0)

    async def test_cancelled_while_recording(self):
        """What has happened is recorded all the same."""
        recording = asyncio.Event()
        complete = self.once.complete

        async def slow_complete(*args):
            recording.set()
            await asyncio.sleep(0.1)
            return await complete(*args)

        with unittest.mock.patch.object(self.once, "complete", slow_complete):
            task = self.start()
            await recording.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
        self.assertEqual(self.lookup(), ("done", 1, False))
        await self.run_once()
        self.assert_happened(1)

    async def test_long_action_keeps_its_lease(self):
        self.once = RunOnce(Pool().connection, waiters=CONNECTIONS - 1,
                            lease=1)
        gate = asyncio.Event()

        async def action(provider_key):
            await gate.wait()
            return await self.post(provider_key)

        tasks = [self.start(action) for _ in range(2)]
        await wait_until(lambda: self.db.execute(
            "SELECT true FROM idempotency_keys"
            " WHERE clock_timestamp() > reserved_at + interval '2 s'"
        ).fetchone())
        gate.set()
        receipts = await asyncio.gather(*tasks)
        self.assertEqual(receipts, [receipts[0]] * 2)
        self.assertEqual(self.lookup(), ("done", 1, False))
        self.assert_happened(1)

    async def test_replaced(self):
        """Who has lost the key returns the other's result."""
        async def action(provider_key):
            await self.post(provider_key)
            self.db.execute("SELECT idem_abandon(key, token, scope)"
                            " FROM idempotency_keys")
            await self.run_once()
            return {"another": "result"}

        self.assertEqual(await self.run_once(action),
                         self.world.effects()[0]["receipt"])
        self.assertEqual(self.lookup(), ("done", 2, False))
        self.assert_happened(1, repeats=1)

    async def break_while_recording(self, times):
        """Run, and break the connection when the action has had its effect."""
        with psycopg.connect() as holder:
            async def action(provider_key):
                receipt = await self.post(provider_key)
                holder.execute("SELECT FROM idempotency_keys FOR UPDATE")
                return receipt

            actions = iter([action, self.post])
            task = asyncio.create_task(
                self.run_retried(lambda key: next(actions)(key)))
            for _ in range(times):
                await wait_until(lambda: world.terminate_waiting(
                    self.db, "idem_complete"))
        receipt = await task
        self.assertEqual(receipt, self.world.effects()[0]["receipt"])

    async def test_connection_lost_while_recording(self):
        await self.break_while_recording(1)
        self.assertEqual(self.lookup(), ("done", 1, False))
        self.assert_happened(1)

    async def test_database_lost_while_recording(self):
        self.once.lease /= 10
        await self.break_while_recording(2)
        self.assertEqual(self.lookup(), ("done", 2, False))
        self.assert_happened(1, repeats=1)

    async def test_no_database_no_effect(self):
        @contextlib.asynccontextmanager
        async def connection():
            async with await psycopg.AsyncConnection.connect(
                    host="/nonexistent") as db:
                yield db

        self.once.connection = connection
        with self.assertRaises(psycopg.OperationalError):
            await self.run_retried()
        self.assert_happened(0)

    async def stop_process(self, number):
        """Send charge.py this signal while it charges."""
        self.world.next("late")
        process = subprocess.Popen(
            [sys.executable, HERE / "charge.py", str(self.world.port),
             "inv_1", "4200"], stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(HERE.parent / "common")},
            # a shell has background jobs ignore it, which is inherited
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        await wait_until(self.world.ledger)
        process.send_signal(number)
        await asyncio.to_thread(process.wait)

    async def test_process_killed(self):
        await self.stop_process(signal.SIGKILL)
        self.assertEqual(self.lookup(), ("in_progress", 1, False))
        # the lease of the dead would last for ten seconds
        self.db.execute("UPDATE idempotency_keys"
                        " SET expires_at = clock_timestamp()")
        receipt = await self.run_once()
        self.assertEqual(receipt, self.world.effects()[0]["receipt"])
        self.assert_happened(1, repeats=1)

    async def test_process_interrupted(self):
        await self.stop_process(signal.SIGINT)
        self.assertEqual(self.lookup(), ("expired", 1, False))
        receipt = await self.run_once()
        self.assertEqual(receipt, self.world.effects()[0]["receipt"])
        self.assert_happened(1, repeats=1)


if __name__ == "__main__":
    unittest.main()
