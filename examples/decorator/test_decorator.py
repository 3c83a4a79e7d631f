"""Counts in the provider's ledger what the decorated tools have done."""

import concurrent.futures
import contextlib
import inspect
import os
import pathlib
import socket
import subprocess
import sys
import unittest
import unittest.mock

import client
import psycopg
import tools
import world
from client import NotSent, Refused, Unanswered
from idempotent import (Idempotent, InFlight, KeyRequired, OtherRequest,
                        Unresolved)

HERE = pathlib.Path(__file__).parent


class DecoratorTest(unittest.TestCase):
    def setUp(self):
        self.world = world.World()
        self.addCleanup(self.world.close)
        self.set(tools, "port", self.world.port)
        self.db = psycopg.connect(autocommit=True)
        self.addCleanup(self.db.close)
        self.db.execute("TRUNCATE idempotency_keys")

    def set(self, target, name, value):
        patch = unittest.mock.patch.object(target, name, value)
        patch.start()
        self.addCleanup(patch.stop)

    def lookup(self, key):
        """The key's status, attempt and maybe_ran."""
        return self.db.execute(
            "SELECT status, attempt, maybe_ran FROM idem_lookup(%s, 'tools')",
            (key,)).fetchone()

    def in_thread(self, function, *args, **kwargs):
        executor = concurrent.futures.ThreadPoolExecutor(1)
        self.addCleanup(executor.shutdown)
        return executor.submit(function, *args, **kwargs)

    def after_the_lease(self, function, *args, **kwargs):
        """The answer once nobody else is at it any more."""
        def answer():
            with contextlib.suppress(InFlight):
                return function(*args, **kwargs)
        return world.wait_until(answer)

    def assert_happened(self, effects, repeats=0):
        self.assertEqual((len(self.world.effects()),
                          len(self.world.repeats())), (effects, repeats))

    def test_second_call_returns_the_first_result(self):
        first = tools.charge("inv_1", 4200, key="charge:inv_1")
        self.assertEqual(first["number"], "charges_0001")
        # the same arguments, written in another way
        self.assertEqual(tools.charge(amount=4200, invoice="inv_1",
                                      currency="EUR", key="charge:inv_1"),
                         first)
        self.assert_happened(1)
        tools.charge("inv_2", 4200, key="charge:inv_2")
        self.assert_happened(2)

    def test_key_is_required(self):
        with self.assertRaises(KeyRequired):
            tools.charge("inv_1", 4200)
        self.assert_happened(0)

    def test_arguments_are_checked_before_the_key(self):
        with self.assertRaises(TypeError):
            tools.charge("inv_1", key="charge:inv_1")
        with self.assertRaises(TypeError):
            tools.charge("inv_1", 4200, provider_key="x", key="charge:inv_1")
        self.assertIsNone(self.lookup("charge:inv_1"))
        self.assert_happened(0)

    def test_agents_see_no_keys(self):
        self.assertEqual(list(inspect.signature(tools.charge).parameters),
                         ["invoice", "amount", "currency"])

    def test_other_arguments_under_the_same_key(self):
        tools.charge("inv_1", 4200, key="charge:inv_1")
        with self.assertRaises(OtherRequest):
            tools.charge("inv_1", 4300, key="charge:inv_1")
        with self.assertRaises(OtherRequest):
            tools.remind("inv_1", key="charge:inv_1")
        self.assert_happened(1)

    def test_reads_are_not_decorated(self):
        self.assertEqual(tools.convert(10, 3), 30)
        self.assertEqual(tools.convert(10, 3), 30)
        self.assertIsNone(
            self.db.execute("SELECT FROM idempotency_keys").fetchone())

    def test_equal_calls_without_a_key_are_one(self):
        first = tools.remind("alice")
        self.assertEqual(tools.remind(customer="alice"), first)
        self.assertNotEqual(tools.remind("bob"), first)
        self.assert_happened(2)

    def test_weak_key_is_forgotten_soon(self):
        @Idempotent(psycopg.connect)("1 day", fallback_ttl="300 ms")
        def notify(customer, *, provider_key):
            # a provider that forgets keys as soon
            return client.post(self.world.port, "notices",
                               {"customer": customer})

        first = notify("alice")
        world.wait_until(lambda: notify("alice") != first)
        self.assert_happened(2)

    def test_any_key_can_be_handed_on(self):
        key = "Zahlung für 100 €, zweite Mahnung"
        self.world.next("lost")
        with self.assertRaises(Unanswered):
            tools.remind("bob", key=key)
        self.assertEqual(tools.remind("bob", key=key)["customer"], "bob")
        self.assert_happened(1, repeats=1)

    def test_crowd(self):
        def call(_):
            with contextlib.suppress(InFlight):
                return tools.charge("inv_1", 4200, key="charge:inv_1")

        with concurrent.futures.ThreadPoolExecutor(8) as executor:
            answers = [answer for answer in executor.map(call, range(24))
                       if answer is not None]
        self.assert_happened(1)
        self.assertTrue(answers)
        for answer in answers:
            self.assertEqual(answer, answers[0])

    def test_late_answer_and_a_duplicate_meanwhile(self):
        self.world.next("late")
        first = self.in_thread(tools.charge, "inv_1", 4200, key="charge:inv_1")
        world.wait_until(self.world.ledger)
        with self.assertRaises(InFlight) as raised:
            tools.charge("inv_1", 4200, key="charge:inv_1")
        self.assertTrue(1 <= raised.exception.retry_after <= 60)
        with self.assertRaises(Unanswered):
            first.result()
        self.assertEqual(self.lookup("charge:inv_1"), ("expired", 1, False))
        # the lease of a minute is over at once
        receipt = tools.charge("inv_1", 4200, key="charge:inv_1")
        self.assertEqual(receipt, self.world.effects()[0]["receipt"])
        self.assertEqual(self.lookup("charge:inv_1"), ("done", 2, False))
        self.assert_happened(1, repeats=1)

    def test_lost_answer(self):
        self.world.next("lost")
        with self.assertRaises(Unanswered):
            tools.charge("inv_1", 4200, key="charge:inv_1")
        receipt = tools.charge("inv_1", 4200, key="charge:inv_1")
        self.assertEqual(receipt, self.world.effects()[0]["receipt"])
        self.assert_happened(1, repeats=1)

    def test_unavailable(self):
        self.world.next("unavailable")
        with self.assertRaises(Unanswered):
            tools.charge("inv_1", 4200, key="charge:inv_1")
        tools.charge("inv_1", 4200, key="charge:inv_1")
        self.assert_happened(1)

    def test_declined_is_the_outcome_for_later_calls(self):
        self.world.next("declined")
        for _ in range(2):
            with self.assertRaises(Refused) as raised:
                tools.charge("inv_1", 4200, key="charge:inv_1")
            self.assertEqual(raised.exception.args, ({"error": "declined"},))
        self.assertEqual(self.lookup("charge:inv_1"), ("failed", 1, False))
        self.assert_happened(0)

    def refuse_connections(self):
        """A port where nobody listens."""
        free = socket.create_server(("127.0.0.1", 0))
        self.set(tools, "port", free.getsockname()[1])
        free.close()

    def test_not_sent(self):
        self.refuse_connections()
        with self.assertRaises(NotSent):
            tools.charge("inv_1", 4200, key="charge:inv_1")
        self.assertEqual(self.lookup("charge:inv_1"), ("released", 1, False))
        self.set(tools, "port", self.world.port)
        tools.charge("inv_1", 4200, key="charge:inv_1")
        self.assert_happened(1)

    def test_not_sent_after_a_lost_answer(self):
        self.world.next("lost")
        with self.assertRaises(Unanswered):
            tools.charge("inv_1", 4200, key="charge:inv_1")
        self.refuse_connections()
        with self.assertRaises(NotSent):
            tools.charge("inv_1", 4200, key="charge:inv_1")
        # the first attempt's outcome is still unknown
        self.assertEqual(self.lookup("charge:inv_1"), ("expired", 2, True))

    def test_too_late_to_try_again(self):
        self.world.next("lost")
        with self.assertRaises(Unanswered):
            tools.charge("inv_1", 4200, key="charge:inv_1")
        # a day later
        self.db.execute("UPDATE idempotency_keys"
                        " SET created_at = created_at - interval '1 day'")
        with self.assertRaises(Unresolved):
            tools.charge("inv_1", 4200, key="charge:inv_1")
        self.assert_happened(1)

    def test_unknown_exception_of_the_tool(self):
        @Idempotent(psycopg.connect)("1 day")
        def buggy(*, provider_key):
            client.post(self.world.port, "orders", {}, provider_key)
            return {"not": {"JSON"}}

        for attempt in (1, 2):
            with self.assertRaises(TypeError):
                buggy(key="order:1")
            self.assertEqual(self.lookup("order:1"),
                             ("expired", attempt, attempt > 1))
        self.assert_happened(1, repeats=1)

    def test_lease_too_short(self):
        """A tool that takes too long is replaced, and hears of it."""
        @Idempotent(psycopg.connect, lease="100 ms")("1 day")
        def slow(*, provider_key):
            receipt = client.post(self.world.port, "orders", {}, provider_key)
            if len(self.world.ledger()) == 1:
                self.after_the_lease(slow, key="order:1")
            return receipt

        with self.assertRaises(InFlight):
            slow(key="order:1")
        self.assertEqual(slow(key="order:1"),
                         self.world.effects()[0]["receipt"])
        self.assertEqual(self.lookup("order:1"), ("done", 2, False))
        self.assert_happened(1, repeats=1)

    def test_process_killed_in_the_tool(self):
        self.world.next("late")
        process = subprocess.Popen(
            [sys.executable, "-c", "import tools\n"
             "tools.idempotent.lease = '1 s'\n"
             "tools.charge('inv_1', 4200, key='charge:inv_1')"],
            env={**os.environ, "PROVIDER_PORT": str(self.world.port),
                 "PYTHONPATH": f"{HERE}:{HERE.parent / 'common'}"})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        world.wait_until(self.world.ledger)
        process.kill()
        process.wait()
        receipt = self.after_the_lease(tools.charge, "inv_1", 4200,
                                       key="charge:inv_1")
        self.assertEqual(receipt, self.world.effects()[0]["receipt"])
        self.assert_happened(1, repeats=1)

    def test_connection_lost_while_recording(self):
        self.hold_and_break(1)
        receipt = self.call.result()
        self.assertEqual(self.lookup("charge:inv_1"), ("done", 1, False))
        self.assertEqual(tools.charge("inv_1", 4200, key="charge:inv_1"),
                         receipt)
        self.assert_happened(1)

    def test_database_lost_while_recording(self):
        self.set(tools.idempotent, "lease", "1 s")
        self.hold_and_break(2)
        with self.assertRaises(psycopg.OperationalError):
            self.call.result()
        receipt = self.after_the_lease(tools.charge, "inv_1", 4200,
                                       key="charge:inv_1")
        self.assertEqual(receipt, self.world.effects()[0]["receipt"])
        self.assert_happened(1, repeats=1)

    def hold_and_break(self, times):
        """Call charge(), and break its connection when it has charged."""
        with psycopg.connect() as holder:
            @contextlib.contextmanager
            def connection():
                with psycopg.connect() as db:
                    yield db
                # after the first one, the reservation: hold the key
                if not held:
                    held.append(holder.execute(
                        "SELECT FROM idempotency_keys FOR UPDATE"))

            held = []
            self.set(tools.idempotent, "connection", connection)
            self.call = self.in_thread(tools.charge, "inv_1", 4200,
                                       key="charge:inv_1")
            for _ in range(times):
                world.wait_until(lambda: world.terminate_waiting(
                    self.db, "idem_complete"))
        self.set(tools.idempotent, "connection", psycopg.connect)

    def test_no_database_no_effect(self):
        self.set(tools.idempotent, "connection",
                 lambda: psycopg.connect(host="/nonexistent"))
        with self.assertRaises(psycopg.OperationalError):
            tools.charge("inv_1", 4200, key="charge:inv_1")
        self.assert_happened(0)


if __name__ == "__main__":
    unittest.main()
