#!/usr/bin/python3
"""Run provider and callers, kill callers at random, and read the ledger.

    run.py without|with DIR

Keeps its files in DIR, which must be empty.  The callers log in as "app", the
check at the end as whatever PGUSER says.  Ends with status 1 if anybody was
charged twice in spite of idem_tool, or not at all, or if callers disagree, or
if anything is stuck.  Ends early, and leaves nothing running, when its
standard input ends or on SIGINT and SIGTERM.
"""

import collections
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time

import psycopg

from charge import TIMEOUT

HERE = pathlib.Path(__file__).parent
INVOICES = 200
CALLERS = 12
SHARERS = 2         # callers that work on each invoice
KILLS = 20
LOSS = 1 / 3
PATIENCE = 300      # seconds after which something must be stuck

# A flag, because an exception could lose sight of a process just started
interrupted = threading.Event()


class Scene:
    """The processes and files of one run."""

    def __init__(self, mode, directory):
        self.mode = mode
        self.directory = pathlib.Path(directory)
        self.provider = None
        self.port = None
        self.callers = {}
        self.kills = 0

    def path(self, kind, caller=""):
        return self.directory / f"{kind}{caller}"

    def deal_out(self):
        """Deal out the invoices, each to SHARERS callers."""
        shares = collections.defaultdict(list)
        for job in range(INVOICES * SHARERS):
            number = job // SHARERS + 1
            shares[job % CALLERS].append(
                {"id": f"INV-{number:04}", "amount": 100 + number})
        for caller, share in shares.items():
            self.path("invoices", caller).write_text(
                "".join(json.dumps(invoice) + "\n" for invoice in share))
            self.path("results", caller).touch()

    def start_provider(self):
        self.provider = subprocess.Popen(
            [sys.executable, HERE.parent / "common" / "provider.py",
             self.path("ledger"), "--loss", str(LOSS),
             "--late", str(2 * TIMEOUT)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True)
        self.port = self.provider.stdout.readline().strip()

    def start_caller(self, caller):
        self.callers[caller] = subprocess.Popen(
            [sys.executable, HERE / "caller.py", self.mode, self.port,
             self.path("invoices", caller), self.path("results", caller)],
            env={**os.environ, "PGUSER": "app"}, start_new_session=True)

    def kill_one(self):
        """Kill a caller without warning, and start it again."""
        caller, process = random.choice(list(self.callers.items()))
        process.kill()
        if process.wait() != 0:     # 0: it had just come to its end
            self.kills += 1
            self.start_caller(caller)

    def supervise(self):
        """Until all callers have paid all their invoices."""
        started = time.monotonic()
        next_kill = started + 0.5
        while self.callers:
            now = time.monotonic()
            if interrupted.is_set():
                sys.exit(130)
            if now > started + PATIENCE:
                sys.exit("failed: callers do not come to an end")
            if now > next_kill and self.kills < KILLS:
                self.kill_one()
                next_kill = now + random.uniform(0.1, 0.4)
            for caller, process in list(self.callers.items()):
                status = process.poll()
                if status == 0:
                    del self.callers[caller]
                elif status is not None:
                    sys.exit(f"failed: a caller ended with status {status}")
            time.sleep(0.02)

    def play(self):
        self.deal_out()
        try:
            self.start_provider()
            for caller in range(CALLERS):
                self.start_caller(caller)
            self.supervise()
        finally:
            for process in [self.provider, *self.callers.values()]:
                if process is not None:
                    process.kill()
                    process.wait()

    def read(self, pattern):
        return [json.loads(line)
                for path in self.directory.glob(pattern)
                for line in path.read_text().splitlines()]


def say(*sentences):
    """Print a paragraph."""
    print(textwrap.fill(" ".join(sentences), 78, initial_indent="   ",
                        subsequent_indent="   ",
                        fix_sentence_endings=True))


def report_without(requests):
    """How many customers were charged more than once?"""
    charged = collections.Counter(
        request["body"]["id"] for request in requests if not request["repeat"])
    twice = sum(1 for count in charged.values() if count > 1)
    say(f"Provider's ledger: {charged.total()} charges.",
        f"=> {twice} of {INVOICES} customers were charged more than once,",
        f"one of them {max(charged.values())} times.")


def problems_with(requests, results, keys):
    """What must not be, as a list of messages."""
    receipts = collections.defaultdict(list)
    for request in requests:
        if not request["repeat"]:
            receipts[request["body"]["id"]].append(
                request["receipt"]["number"])
    told = collections.defaultdict(list)
    for result in results:
        told[result["id"]].append(result["number"])

    if len(receipts) != INVOICES:
        yield f"{INVOICES - len(receipts)} invoices were never charged"
    for invoice, charges in receipts.items():
        if len(charges) != 1:
            yield f"{invoice} was charged {len(charges)} times"
        if told[invoice] != charges[:1] * SHARERS:
            yield f"{invoice}: {charges} charged, {told[invoice]} told"
    if len(keys) != INVOICES:
        yield f"there are {len(keys)} keys"
    for key, status, _ in keys:
        if status != "done":
            yield f"{key} is {status}"


def report_with(requests, results):
    """Was everybody charged exactly once?  Does everybody know?"""
    with psycopg.connect() as db:
        keys = db.execute(
            "SELECT key, status, attempt FROM idempotency_keys"
            " WHERE scope = 'payments'").fetchall()
    problems = list(problems_with(requests, results, keys))
    if problems:
        sys.exit("\n".join(["failed:", *problems[:20]]))

    repeats = [request["body"]["id"] for request in requests
               if request["repeat"]]
    again = sum(1 for _, _, attempt in keys if attempt > 1)
    say(f"Provider's ledger: {INVOICES} charges.",
        f"=> {INVOICES} of {INVOICES} customers were charged exactly once.",
        "Both callers of each invoice hold the same receipt; no key is left",
        f"in progress, though {again} needed more than one attempt.")
    print()
    say("Two things work together here.  The reservation lets one caller at a",
        "time through, and nobody once the outcome is recorded.  What remains",
        f"are {len(repeats)} repeats after a lost answer or a killed caller.",
        "No database can know what became of those, so each carried the same",
        "Idempotency-Key, and the provider did not charge again.  Had the key",
        "not been passed on, they would have been",
        f"{len(repeats)} more charges, to {len(set(repeats))} customers.")


def watch_for_interrupts():
    def watch_input():
        sys.stdin.read()
        interrupted.set()

    threading.Thread(target=watch_input, daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *args: interrupted.set())


def main():
    watch_for_interrupts()
    mode, directory = sys.argv[1:]
    scene = Scene(mode, directory)
    scene.play()
    requests = scene.read("ledger")
    say(f"{scene.kills} callers killed and restarted;",
        f"{len(requests)} requests reached the provider.")
    if mode == "without":
        report_without(requests)
    else:
        report_with(requests, scene.read("results*"))


main()
