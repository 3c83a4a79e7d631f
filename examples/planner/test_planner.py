"""Counts in the provider's ledger what the executors have done."""

import collections
import concurrent.futures
import itertools
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import unittest
import unittest.mock

import client
import executor
import planner
import psycopg
import world
from client import Refused
from executor import (PlanChanged, StillBusy, Unacceptable, Unresolved,
                      execute)
from psycopg.types.json import Jsonb

HERE = pathlib.Path(__file__).parent
ACTIONS = ["orders", "charges", "shipments", "mails"]
TRACED = {executor.__file__, client.__file__}
# Kill at every fourth line, from one of the first four.  All four steps run
# about the same lines, an odd number of them, so each line has its turn.
EVERY = 4
AT_A_TIME = 8


def at_each_line(function):
    """Call function(n) before the n-th line of the executor that is run."""
    lines = itertools.count(1)

    def trace(frame, event, _):
        if frame.f_code.co_filename not in TRACED:
            return None
        if event == "line":
            function(next(lines))
        return trace

    sys.settrace(trace)


def start_and_kill(port, run, statement):
    """Execute in a process of its own that dies there; return its id."""
    pid = os.fork()
    if pid == 0:
        try:
            with psycopg.connect(autocommit=True) as db:
                at_each_line(lambda n: n == statement
                             and os.kill(os.getpid(), signal.SIGKILL))
                execute(db, port, run)
        finally:
            os._exit(0)
    return pid


class PlannerTest(unittest.TestCase):
    def setUp(self):
        self.world = world.World()
        self.addCleanup(self.world.close)
        self.db = psycopg.connect(autocommit=True)
        self.addCleanup(self.db.close)
        self.db.execute("DROP TABLE IF EXISTS plan")
        self.db.execute((HERE / "plan.sql").read_text())
        self.db.execute("TRUNCATE idempotency_keys")
        self.plan("run-1")

    def set(self, name, value):
        patch = unittest.mock.patch.object(executor, name, value)
        patch.start()
        self.addCleanup(patch.stop)

    def plan(self, run):
        planner.store(self.db, run, planner.sale(run, "tea", 4200))

    def execute(self, run="run-1"):
        with psycopg.connect(autocommit=True) as db:
            return execute(db, self.world.port, run)

    def lookup(self, step):
        """The step's status, attempt and maybe_ran."""
        return self.db.execute(
            "SELECT status, attempt, maybe_ran FROM idem_lookup("
            "idem_step_key('run-1', %s), 'plans')", (step,)).fetchone()

    def assert_happened(self, actions, repeats=0):
        self.assertEqual([line["action"] for line in self.world.effects()],
                         actions)
        self.assertEqual(len(self.world.repeats()), repeats)

    def assert_receipts(self, receipts, actions=ACTIONS):
        """These are what the effects gave, in order."""
        self.assertEqual(
            list(receipts.values()),
            [line["receipt"] for line in self.world.effects()])
        self.assertEqual(len(receipts), len(actions))

    def test_all_steps_are_done_once(self):
        receipts = self.execute()
        self.assert_receipts(receipts)
        self.assertEqual(receipts[3]["charge"], receipts[2]["number"])
        self.assertEqual(receipts[4]["about"], receipts[3]["number"])
        self.assertEqual(self.execute(), receipts)
        self.assert_happened(ACTIONS)

    def test_keys_are_assigned_when_the_plan_is_made(self):
        self.assertEqual(
            self.db.execute("SELECT key FROM plan ORDER BY step").fetchall(),
            [(f"run-1:{step}",) for step in (1, 2, 3, 4)])
        with self.assertRaises(psycopg.errors.NotNullViolation):
            self.db.execute("INSERT INTO plan (run, step, tool, args)"
                            " VALUES ('run-2', 1, 'mail', '{}')")

    def test_number_is_used_once(self):
        with self.assertRaises(psycopg.errors.UniqueViolation):
            planner.store(self.db, "run-1", [("mail", {}), ("mail", {})],
                          first=0)
        self.assertEqual(
            self.db.execute("SELECT count(*) FROM plan").fetchone(), (4,))

    def count_statements(self):
        """How many lines does a run come to, if nothing goes wrong?"""
        lines = []
        before = sys.gettrace()
        at_each_line(lines.append)
        try:
            execute(self.db, self.world.port, "run-1")
        finally:
            sys.settrace(before)
        return len(lines)

    def test_killed_between_any_two_statements(self):
        self.set("LEASE", "500 ms")
        points = range(random.randint(1, EVERY),
                       self.count_statements() + 1, EVERY)
        runs = [f"killed-{n}" for n in points]
        dying = collections.deque()
        for n, run in zip(points, runs):
            self.plan(run)
            dying.append(start_and_kill(self.world.port, run, n))
            if len(dying) == AT_A_TIME:
                self.assert_killed(dying.popleft())
        for pid in dying:
            self.assert_killed(pid)

        with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as threads:
            receipts = dict(zip(runs, threads.map(self.execute, runs)))
        done = collections.defaultdict(list)
        for line in self.world.effects():
            done[line["key"].rpartition(":")[0]].append(line)
        for run in runs:
            lines = done[f"plans/{run}"]
            self.assertEqual([line["action"] for line in lines], ACTIONS)
            self.assertEqual(list(receipts[run].values()),
                             [line["receipt"] for line in lines])
        # some were killed when they had sent a request
        self.assertGreaterEqual(len(self.world.repeats()), len(ACTIONS))
        self.assertEqual(
            self.db.execute("SELECT DISTINCT status FROM idempotency_keys")
            .fetchall(), [("done",)])

    def assert_killed(self, pid):
        _, status = os.waitpid(pid, 0)
        self.assertEqual(status, signal.SIGKILL)

    def start_process(self):
        process = subprocess.Popen(
            [sys.executable, HERE / "executor.py", str(self.world.port),
             "run-1"], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(HERE.parent / "common")})
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def kill_after(self, requests):
        """Kill an executor when so many requests have arrived."""
        process = self.start_process()
        world.wait_until(lambda: len(self.world.ledger()) >= requests)
        process.kill()
        process.wait()
        # its lease would last for ten seconds
        self.db.execute("UPDATE idempotency_keys"
                        " SET expires_at = clock_timestamp()"
                        " WHERE status = 'in_progress'")

    def test_killed_while_a_mail_is_sent(self):
        self.world.next("ok", "ok", "ok", "late")
        self.kill_after(4)
        self.assertEqual(self.lookup(3), ("done", 1, False))
        self.assert_receipts(self.execute())
        self.assertEqual(self.lookup(4), ("done", 2, False))
        self.assert_happened(ACTIONS, repeats=1)

    def test_killed_again_and_again(self):
        for requests in (1, 2, 3):
            self.world.next("late")
            self.kill_after(max(requests, len(self.world.ledger()) + 1))
        self.assert_receipts(self.execute())
        self.assertEqual(len(self.world.effects()), 4)
        self.assertEqual(len(self.world.repeats()), 3)

    def test_two_executors_at_once(self):
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            first, second = threads.map(self.execute, ["run-1"] * 2)
        self.assertEqual(first, second)
        self.assert_happened(ACTIONS)

    def test_lost_answers(self):
        self.world.next(*4 * ["lost", "ok"])
        self.assert_receipts(self.execute())
        self.assert_happened(ACTIONS, repeats=4)

    def test_late_answer(self):
        self.set("TIMEOUT", 1)
        self.world.next("ok", "late")
        self.assert_receipts(self.execute())
        self.assert_happened(ACTIONS, repeats=1)

    def test_unavailable(self):
        self.world.next("ok", *["unavailable"] * executor.ATTEMPTS)
        with self.assertRaises(StillBusy):
            self.execute()
        self.assert_happened(["orders"])
        self.assert_receipts(self.execute())
        self.assert_happened(ACTIONS)

    def closed_port(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            return free.getsockname()[1]

    def test_not_sent(self):
        with self.assertRaises(StillBusy):
            execute(self.db, self.closed_port(), "run-1")
        self.assertEqual(self.lookup(1),
                         ("released", executor.ATTEMPTS, False))
        self.assert_receipts(self.execute())

    def test_not_sent_after_a_lost_answer(self):
        self.set("ATTEMPTS", 1)
        self.world.next("lost")
        with self.assertRaises(StillBusy):
            self.execute()
        with self.assertRaises(StillBusy):
            execute(self.db, self.closed_port(), "run-1")
        # the first attempt's outcome is still unknown
        self.assertEqual(self.lookup(1), ("expired", 2, True))
        self.assert_receipts(self.execute())
        self.assert_happened(ACTIONS, repeats=1)

    def test_declined_until_it_is_planned_anew(self):
        self.world.next("ok", "declined")
        for _ in range(2):
            with self.assertRaises(Refused):
                self.execute()
        self.assert_happened(["orders"])
        # what was declined, and all that was to follow, under new numbers
        self.db.execute("DELETE FROM plan WHERE step > 1")
        planner.store(self.db, "run-1", [
            ("charge", {"order": {"step": 1}, "amount": 2100}),
            ("mail", {"to": "run-1", "about": {"step": 5}})], first=5)
        self.assert_receipts(self.execute(), ["orders", "charges", "mails"])

    def test_too_late_to_go_on(self):
        self.set("ATTEMPTS", 1)
        self.world.next("ok", "lost")
        with self.assertRaises(StillBusy):
            self.execute()
        # a day later
        self.db.execute("UPDATE idempotency_keys"
                        " SET created_at = created_at - interval '1 day'")
        with self.assertRaises(Unresolved):
            self.execute()
        self.assert_happened(ACTIONS[:2])

    def replan(self, step, tool, args):
        self.db.execute("UPDATE plan SET tool = %s, args = %s WHERE step = %s",
                        (tool, Jsonb(args), step))

    def test_number_reused_for_another_action(self):
        self.execute()
        for tool, args in [("charge", {"order": {"step": 1}, "amount": 1}),
                           ("ship", {"order": {"step": 1}, "amount": 4200})]:
            self.replan(2, tool, args)
            with self.assertRaises(PlanChanged):
                self.execute()
        self.assert_happened(ACTIONS)

    def test_number_reused_while_the_outcome_is_unknown(self):
        self.set("ATTEMPTS", 1)
        self.world.next("lost")
        with self.assertRaises(StillBusy):
            self.execute()
        self.replan(1, "mail", {"to": "somebody"})
        with self.assertRaises(PlanChanged):
            self.execute()
        self.assert_happened(["orders"])

    def test_nonsense_is_not_recorded(self):
        answers = iter([None, {}, {"number": 1}, {"number": "of another"}])

        def post(*args):
            receipt = client.post(*args)
            return next(answers, receipt)

        self.set("post", post)
        self.assert_receipts(self.execute())
        self.assert_happened(ACTIONS, repeats=4)

    def test_recorded_nonsense_is_not_used(self):
        for run, result in enumerate([None, {}, {"number": "of another"}], 2):
            key, = self.db.execute("SELECT idem_step_key(%s, 1)",
                                   (f"run-{run}",)).fetchone()
            self.plan(f"run-{run}")
            with self.db.transaction():
                self.db.execute("SELECT idem_reserve(%s, scope => 'plans')",
                                (key,))
                self.db.execute(
                    "SELECT idem_complete(%s, %s, scope => 'plans')",
                    (key, Jsonb(result)))
            with self.assertRaises(Unacceptable):
                self.execute(f"run-{run}")
        self.assert_happened([])

    def test_replaced(self):
        """An executor that is too slow returns its successor's receipt."""
        def post(*args):
            receipt = client.post(*args)
            self.set("post", client.post)
            self.db.execute("SELECT idem_abandon(key, token, scope)"
                            " FROM idempotency_keys")
            self.execute()
            return {**receipt, "number": "another"}

        self.set("post", post)
        self.assert_receipts(self.execute())
        self.assert_happened(ACTIONS, repeats=1)

    def test_connection_lost_while_recording(self):
        self.set("LEASE", "500 ms")
        with psycopg.connect() as holder:
            def post(*args):
                receipt = client.post(*args)
                holder.execute("SELECT FROM idempotency_keys FOR UPDATE")
                return receipt

            self.set("post", post)
            with concurrent.futures.ThreadPoolExecutor(1) as threads:
                first = threads.submit(self.execute)
                world.wait_until(lambda: world.terminate_waiting(
                    self.db, "idem_complete"))
                with self.assertRaises(psycopg.OperationalError):
                    first.result()
        self.assert_happened(["orders"])
        self.set("post", client.post)
        self.assert_receipts(self.execute())
        self.assert_happened(ACTIONS, repeats=1)

    def test_no_database_no_effect(self):
        process = subprocess.run(
            [sys.executable, HERE / "executor.py", str(self.world.port),
             "run-1"], stderr=subprocess.DEVNULL,
            env={**os.environ, "PGHOST": "/nonexistent",
                 "PYTHONPATH": str(HERE.parent / "common")})
        self.assertNotEqual(process.returncode, 0)
        self.assert_happened([])

    def test_program(self):
        output, _ = self.start_process().communicate()
        self.assertIn("mails_0004", output)
        self.assert_happened(ACTIONS)


if __name__ == "__main__":
    unittest.main()
