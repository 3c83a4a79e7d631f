"""For tests: the world outside, as a process, and what has happened in it."""

import json
import pathlib
import subprocess
import sys
import tempfile
import time

import client

PATIENCE = 30       # seconds after which something must be stuck


class World:
    """A provider of its own for one test; see provider.py."""

    def __init__(self, *options):
        self.directory = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.directory.name) / "ledger"
        self.process = subprocess.Popen(
            [sys.executable, pathlib.Path(__file__).with_name("provider.py"),
             self.path, "--late", "60", *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def close(self):
        with self.process:          # closes its pipes, and waits for its end
            pass
        self.directory.cleanup()

    def next(self, *fates):
        """Decide what becomes of the next requests."""
        client.post(self.port, "next", fates)

    def ledger(self):
        """All requests that acted or were repeats, in order."""
        # a line that is being written has no end yet
        lines = self.path.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def effects(self):
        return [line for line in self.ledger() if not line["repeat"]]

    def repeats(self):
        """What would have happened twice without the provider's own key."""
        return [line for line in self.ledger() if line["repeat"]]


def wait_until(condition):
    """Wait until this function's value is true, and return it."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)
    return value


def terminate_waiting(db, function):
    """Break the connection whose call of this function waits for a lock.

    False: there is none."""
    return db.execute(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND wait_event_type = 'Lock' AND query LIKE %s",
        (f"SELECT {function}(%",)).fetchone() is not None
