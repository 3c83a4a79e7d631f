"""W5: many callers of one key."""

import threading
import time

from figures import Figure, Rounds, number, percentile
from server import cpu_seconds

CALLERS = 64
WAIT = 5        # seconds that the callers wait while we watch them


def hot_key(bench):
    bench.report.section("W5: one hot key")
    nowait(bench)
    waiters(bench)


def nowait(bench):
    """All are told that it is in progress."""
    variants = {"idem_tool": "hot_idem", "by hand": "hot_hand"}
    with bench.server.connect("bench") as db:
        db.execute("SELECT FROM idem_reserve('hot', '1 hour')")
        db.execute("INSERT INTO by_hand (key, status, expires_at) VALUES"
                   " ('hot', 'in_progress', now() + interval '1 hour')"
                   " ON CONFLICT DO NOTHING")
    speed = Rounds()
    for _ in range(bench.rounds):
        for name, script in variants.items():
            speed.add(name, bench.server.pgbench(
                script, clients=CALLERS, seconds=bench.seconds))
    bench.report.text(
        f"{CALLERS} clients, `wait => '0'`: the key is in progress, and they"
        " hear it. By hand: INSERT … ON CONFLICT DO NOTHING, then SELECT.")
    bench.report.table(
        ("nowait", "per second", "idem_tool is"),
        [(name, speed[name].text(), "" if name == "idem_tool" else
          f"{speed['idem_tool'].over(speed[name]).text()} ×")
         for name in variants])


def waiters(bench):
    """All wait; how soon do they hear of the outcome?"""
    latencies, shares = [], []
    for turn in range(bench.rounds):
        late, share = wake(bench.server, f"awaited {turn}")
        latencies.append(late)
        shares.append(100 * share)
    median = Figure(percentile(late, 0.5) * 1000 for late in latencies)
    worst = Figure(percentile(late, 0.99) * 1000 for late in latencies)
    load = Figure(shares)
    bench.report.text(
        f"{CALLERS} clients, `wait => '1 min'`: after {WAIT} s the holder"
        " completes. From the moment at which it sends that to the moment at"
        " which a waiter's call returns in the server; and the processor time"
        " of all waiters while they wait.")
    bench.report.table(
        ("waiting", ""),
        [("wake-up, median, ms", median.text()),
         ("wake-up, 99th percentile, ms", worst.text()),
         ("all waiters, % of a core", load.text())])
    bench.report.in_short(
        f"{CALLERS} waiters on one key",
        f"{number(load.median)} % of a core, woken within"
        f" {number(worst.median)} ms (99 %)")
    bench.report.target("W5", "wake-up, 99th percentile, ms", 20,
                        worst.median)
    bench.report.target("W5", f"{CALLERS} waiters, % of a core", 5,
                        load.median)


def wake(server, key):
    """Seconds until each waiter was awake, and their share of a core."""
    holder = server.connect("bench")
    [token] = holder.execute("SELECT token FROM idem_reserve(%s, '1 hour')",
                             (key,)).fetchone()
    sessions = [server.connect("bench") for _ in range(CALLERS)]
    awake = []

    def wait(db):
        status, at = db.execute(
            "SELECT status, extract(epoch FROM clock_timestamp())::float8"
            " FROM idem_reserve(%s, wait => '1 min')", (key,)).fetchone()
        assert status == "done", status
        awake.append(at)

    threads = [threading.Thread(target=wait, args=(db,), daemon=True)
               for db in sessions]
    pids = [db.info.backend_pid for db in sessions]
    for thread in threads:
        thread.start()
    time.sleep(1)           # until all of them wait
    used = -sum(map(cpu_seconds, pids))
    start = time.monotonic()
    time.sleep(WAIT)
    used += sum(map(cpu_seconds, pids))
    elapsed = time.monotonic() - start
    done = time.time()
    holder.execute("SELECT idem_complete(%s, '1', %s)", (key, token))
    for thread in threads:
        thread.join()
    for db in (holder, *sessions):
        db.close()
    if len(awake) != CALLERS:
        raise RuntimeError(f"{len(awake)} of {CALLERS} were told the result")
    return [at - done for at in awake], used / elapsed
