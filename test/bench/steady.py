"""W7: a constant number of live keys, the others expire."""

import threading
import time
from pathlib import Path
from statistics import median

from figures import Figure, Rounds, number
from server import cpu_seconds
import plot

CLIENTS = 4


def steady_state(bench):
    """As fast as they can, and then at half that speed: a constant rate is a
    constant number of live keys."""
    memory = 1 if bench.quick else 3
    turnovers = 10 if bench.quick else 20
    server = bench.server
    bench.report.section("W7: steady state with expiry")
    bench.report.text(
        f"{CLIENTS} clients reserve and complete keys that are remembered for"
        f" {memory} s. Worker and autovacuum come every second, and"
        " autovacuum_vacuum_scale_factor of the table is 0.05. First as fast"
        " as they can, in turns with a table where keys are kept; then at"
        f" half that speed for {turnovers} times the {memory} s, which is"
        " when the sizes and the worker are watched.")
    server.configure(autovacuum="on", autovacuum_naptime="1s",
                     idem_tool__naptime="1s")
    speed = Rounds()
    for _ in range(1 if bench.quick else 3):
        for dbname, swept in (("kept", False), ("expiring", True)):
            prepare(server, dbname, swept)
            speed.add(dbname, load(server, dbname, 3 * memory, memory))
            server.drop_database(dbname)
    rate = int(speed["expiring"].median / 2)
    prepare(server, "steady", True)
    with Watch(server) as watch:
        load(server, "steady", turnovers * memory, memory, rate)
    show(bench, watch, speed, rate)
    server.drop_database("steady")
    server.configure(autovacuum="off")
    sweep(bench)


def prepare(server, dbname, swept):
    server.new_database(dbname)
    server.query("ALTER TABLE idempotency_keys"
                 " SET (autovacuum_vacuum_scale_factor = 0.05)",
                 dbname=dbname)
    if swept:
        server.query(f"ALTER DATABASE {dbname} SET idem_tool.worker = on")
        server.query("SELECT idem_wake_worker()", dbname=dbname)


def load(server, dbname, seconds, memory, rate=None):
    if dbname == "kept":
        memory = 86400
    return server.pgbench("pair_idem", clients=CLIENTS, seconds=seconds,
                          dbname=dbname, rate=rate,
                          setting=f"idem_tool.result_ttl={memory}s")


class Watch:
    """Sizes each second; the worker's processor time every few ms, for it
    lives only a moment."""

    def __init__(self, server):
        self.server = server
        self.sizes = []
        self.workers = {}
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self.look_at_sizes),
                        threading.Thread(target=self.look_at_workers)]

    def __enter__(self):
        self.start = time.monotonic()
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()
        self.seconds = time.monotonic() - self.start

    def look_at_sizes(self):
        with self.server.connect("steady") as db:
            while not self.over.wait(1):
                heap, index, deleted = db.execute(
                    "SELECT pg_relation_size('idempotency_keys'),"
                    " pg_relation_size('idempotency_keys_pkey'),"
                    " (SELECT swept_deleted FROM idem_stats"
                    " WHERE datname = 'steady')").fetchone()
                self.sizes.append((time.monotonic() - self.start, heap,
                                   index))
                self.deleted = deleted

    def look_at_workers(self):
        while not self.over.wait(0.01):
            for pid in self.server.children():
                if pid in self.workers or is_worker(pid):
                    # of one that has just ended the last look counts
                    self.workers[pid] = max(self.workers.get(pid, 0),
                                            cpu_seconds(pid))


def is_worker(pid):
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return b"idem_tool worker" in title


def show(bench, watch, speed, rate):
    growth = [later(watch.sizes, column) for column in (1, 2)]
    share = 100 * sum(watch.workers.values()) / watch.seconds
    ratio = speed["expiring"].over(speed["kept"])
    _, heap, index = watch.sizes[-1]
    bench.report.table(
        ("", ""),
        [("pairs per second, keys expire", speed["expiring"].text()),
         ("pairs per second, keys are kept", speed["kept"].text()),
         ("ratio", f"{ratio.text()} ×"),
         (f"at {rate} pairs per second:", ""),
         ("keys deleted", watch.deleted),
         ("worker, % of a core", number(share)),
         ("table at the end", f"{heap / 2 ** 20:.1f} MB"),
         ("index at the end", f"{index / 2 ** 20:.1f} MB"),
         ("table: last quarter against the second", f"{growth[0]:.2f} ×"),
         ("index: last quarter against the second", f"{growth[1]:.2f} ×")])
    bench.report.plot("w7-size", "W7: size of table and index", plot.lines(
        "W7: size while keys expire", "MB", "seconds",
        {"table": [(t, heap / 2 ** 20) for t, heap, _ in watch.sizes],
         "index": [(t, index / 2 ** 20) for t, _, index in watch.sizes]}))
    target = bench.report.target
    target("W7", "size of the table, last quarter against the second", 1.2,
           growth[0])
    target("W7", "size of the index, last quarter against the second", 1.2,
           growth[1])
    target("W7", "throughput against keys that are kept", 0.9,
           ratio.median, least=True)


def later(sizes, column):
    """The last quarter against the second; the first fills the table."""
    values = [row[column] for row in sizes]
    quarter = len(values) // 4
    return median(values[-quarter:]) / median(values[quarter:2 * quarter])


def sweep(bench):
    """How fast the sweep is when nobody else is there."""
    keys = 100_000 if bench.quick else 300_000
    rates, logs = [], []
    for _ in range(bench.rounds):
        # by idem_sweep(), not by the worker before us
        bench.server.new_database("swept")
        bench.server.query("SELECT fill(1, %s, '-1 s')", (keys,),
                           dbname="swept")
        start, written = time.monotonic(), wal(bench.server)
        [(deleted,)] = bench.server.query("SELECT deleted FROM idem_sweep()",
                                          dbname="swept")
        rates.append(deleted / (time.monotonic() - start))
        logs.append((wal(bench.server) - written) / keys)
        if deleted != keys:
            raise RuntimeError(f"{deleted} of {keys} keys were swept")
        bench.server.drop_database("swept")
    rate, log = Figure(rates), Figure(logs)
    bench.report.text(f"`idem_sweep()` alone deletes {rate.text()} keys a"
                      f" second, and writes {log.text()} bytes of WAL for"
                      " each.")
    bench.report.target("W7", "bytes of WAL for a swept key", 70, log.median)
    bench.report.target("W7", "keys swept a second", 50000, rate.median,
                        least=True)


def wal(server):
    """Bytes of WAL since the beginning of time."""
    return float(server.query(
        "SELECT pg_current_wal_insert_lsn() - '0/0'")[0][0])
