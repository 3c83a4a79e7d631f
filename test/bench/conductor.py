"""Run the workloads one after the other and write the report.

Started by run.sh, which has the usage.
"""

import argparse
import signal
import sys
import time
import traceback
from pathlib import Path

import footprint
import growth
import hotkey
import inside
import outside
from report import Report, machine
from server import Server
import steady
import wire

ROOT = Path(__file__).parents[2]

WORKLOADS = {
    "footprint": footprint.counters,
    "instructions": footprint.instructions,
    "W1": wire.two_phases,
    "W2": wire.one_transaction,
    "W3": wire.retry_storm,
    "W4": inside.in_database,
    "W5": hotkey.hot_key,
    "W6": growth.growth,
    "W7": steady.steady_state,
    "W8": inside.batches,
    "outside": outside.outside,
}


# a part that takes longer hangs; seconds
LIMIT = 600


class Bench:
    """What every workload gets: the server, the report, how much to do."""

    def __init__(self, server, quick):
        self.server = server
        self.quick = quick
        self.report = Report()
        self.filled = False
        self.times = []
        self.rounds = 1 if quick else 5
        # of those that mostly show the disk
        self.durable_rounds = 1 if quick else 3
        self.seconds = 1
        self.keys = 100_000 if quick else 1_000_000


    def run(self, name):
        """One part; if it fails, the others have their turn all the same."""
        start = time.monotonic()
        signal.alarm(LIMIT)
        try:
            self.make_ready()
            WORKLOADS[name](self)
        except Exception as error:
            traceback.print_exc()
            self.report.failed(name, error)
            self.filled = False
        finally:
            signal.alarm(0)
        self.times.append(f"{name} {time.monotonic() - start:.0f} s")

    def make_ready(self):
        """As every part expects the server, whatever the last one did."""
        self.server.configure(fsync="off", full_page_writes="off",
                              autovacuum="off")
        if not self.filled:
            self.server.new_database("bench", self.keys)
            self.filled = True


def expired(*_):
    raise TimeoutError(f"not done after {LIMIT} s")


def arguments():
    parser = argparse.ArgumentParser(prog="run.sh")
    parser.add_argument("--socket", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--bindir", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default=",".join(WORKLOADS))
    parser.add_argument("--out", default=ROOT / "docs/performance")
    given = parser.parse_args()
    given.only = given.only.split(",")
    unknown = set(given.only) - set(WORKLOADS)
    if unknown:
        parser.error(f"no workload {', '.join(sorted(unknown))}")
    return given


def main():
    # as an exception, so that everything that we have started is ended
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGALRM, expired)
    given = arguments()
    bench = Bench(Server(given.socket, given.bindir), given.quick)
    for name in given.only:
        bench.run(name)
    bench.report.write(given.out, [
        *machine(bench.server), ("time taken", ", ".join(bench.times))])
    print(f"\nwritten to {given.out}")
    if bench.report.failures:
        sys.exit(f"failed: {', '.join(bench.report.failures)}")


if __name__ == "__main__":
    main()
