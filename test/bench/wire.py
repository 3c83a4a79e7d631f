"""W1, W2, W3: over the wire, against what people write by hand."""

import threading
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from figures import Rounds, rotated, span
import plot

MODES = {
    "CPU-bound": dict(fsync="off", full_page_writes="off"),
    "durable": dict(fsync="on", full_page_writes="on"),
}
FEW = 100       # retries in a burst: of keys that were seen lately


@dataclass
class Variant:
    """One way to do the workload: a script, and where its table is."""
    name: str
    script: str
    schema: str = "public"
    variables: dict = field(default_factory=dict)


def pairs(kind):
    return [
        Variant("idem_tool", f"{kind}_idem"),
        Variant("by hand, expiry", f"{kind}_hand", "expiry"),
        Variant("by hand", f"{kind}_hand"),
        Variant("PL/pgSQL", f"{kind}_plpgsql"),
        Variant("floor", f"{kind}_bare"),
    ]


def two_phases(bench):
    """W1"""
    bench.report.section("W1: two phases")
    bench.report.text(
        "Reserve and complete as two transactions. By hand: `INSERT … ON"
        " CONFLICT DO NOTHING RETURNING`, then `UPDATE`; who has inserted"
        " the row does not look at it. With an extra SELECT in between in"
        " the row that says so. Expiry: an index on `expires_at` and a"
        " DELETE twice a second, which finds nothing to delete. Floor: a bare"
        " INSERT and UPDATE.")
    variants = pairs("pair")
    variants.insert(2, Variant("by hand, expiry, SELECT", "pair_three",
                               "expiry"))
    speed = compare(bench, "W1", variants,
                    (4,) if bench.quick else (1, 4, 16))
    expiry, hand = (span(ratios(speed["CPU-bound"], "idem_tool", peer))
                    for peer in ("by hand, expiry", "by hand"))
    bench.report.in_short(
        "reserve + complete, two transactions, per second",
        f"{expiry} × by hand with that index, {hand} × without expiry")


def one_transaction(bench):
    """W2"""
    bench.report.section("W2: one transaction")
    bench.report.text("BEGIN, reserve, one business INSERT, complete,"
                      " COMMIT.")
    compare(bench, "W2", pairs("order"), (4,) if bench.quick else (1, 4))


def retry_storm(bench):
    """W3"""
    bench.report.section("W3: retry storm")
    bench.report.text(
        f"95 % of the calls repeat one of {bench.keys} settled keys, drawn"
        " evenly, so that few have been seen lately. The others are new, and"
        " are reserved and completed. Floor: a primary-key SELECT of status and"
        f" result instead. “Burst”: only repetitions, of {FEW} keys.")
    variants = pairs("storm")
    for variant in variants:
        variant.variables = dict(share=5, keys=bench.keys)
    burst = dict(share=0, keys=FEW)
    variants += [
        Variant("burst, idem_tool", "storm_idem", variables=burst),
        Variant("burst, by hand", "storm_hand", variables=burst),
        Variant("burst, SELECT", "storm_bare", variables=burst)]
    speed = compare(bench, "W3", variants, (4,) if bench.quick else (1, 4))
    for what, mine, peer, limit in (
            ("against SQL by hand", "idem_tool", "by hand", 1.9),
            ("against a primary-key SELECT", "idem_tool", "floor", 1.0),
            ("burst, against SQL by hand",
             "burst, idem_tool", "burst, by hand", 2.2),
            ("burst, against a primary-key SELECT",
             "burst, idem_tool", "burst, SELECT", 1.0)):
        bench.report.target(
            "W3", f"throughput {what}, CPU-bound", limit,
            min(ratios(speed["CPU-bound"], mine, peer)), least=True)
    by_hand, select, any_hand, any_select = (
        span(ratios(speed["CPU-bound"], mine, peer)) for mine, peer in (
            ("burst, idem_tool", "burst, by hand"),
            ("burst, idem_tool", "burst, SELECT"),
            ("idem_tool", "by hand"), ("idem_tool", "floor")))
    bench.report.in_short(
        "replays of keys that were seen lately, per second",
        f"{by_hand} × by hand, {select} × a primary-key SELECT; in a retry"
        f" storm over {bench.keys} keys {any_hand} × and {any_select} ×")


def compare(bench, workload, variants, clients):
    """All variants, durable and not; the figures by mode."""
    speed = {}
    for mode, settings in MODES.items():
        if bench.quick and mode == "durable" and workload != "W1":
            continue
        bench.server.configure(**settings)
        bench.server.query("CHECKPOINT")
        speed[mode] = measure(
            bench, variants, clients,
            bench.durable_rounds if mode == "durable" else bench.rounds)
        show(bench, workload, mode, variants, clients, speed[mode])
    if workload != "W3":
        check(bench, workload, speed)
    return speed


def measure(bench, variants, clients, rounds):
    speed = Rounds()
    for turn in range(rounds):
        for count in clients:
            for variant in rotated(variants, turn):
                with (deleting(bench.server) if variant.schema == "expiry"
                      else nullcontext()):
                    speed.add((variant.name, count), bench.server.pgbench(
                        variant.script, clients=count, seconds=bench.seconds,
                        schema=variant.schema, variables=variant.variables))
    return speed


@contextmanager
def deleting(server):
    """The job of cron that comes with the peer's index on expires_at."""
    over = threading.Event()

    def delete():
        with server.connect("bench") as db:
            while not over.wait(0.5):
                db.execute("DELETE FROM expiry.by_hand"
                           " WHERE expires_at < now()")

    thread = threading.Thread(target=delete, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def show(bench, workload, mode, variants, clients, speed):
    peers = {name: "burst, idem_tool" if name.startswith("burst")
             else "idem_tool" for name in (v.name for v in variants)}
    header = [mode]
    for count in clients:
        header += [f"{count} client{'s'[:count > 1]}, per second",
                   "idem_tool is"]
    rows = []
    for name, mine in peers.items():
        row = [name]
        for count in clients:
            row.append(speed[name, count].text())
            row.append("" if name == mine else
                       speed[mine, count].over(speed[name, count]).text()
                       + " ×")
        rows.append(row)
    bench.report.table(header, rows)
    title = f"{workload}, {mode}"
    bench.report.plot(
        f"{workload}-{mode}".lower(), title, plot.bars(
            title, "per second",
            [f"{count} client{'s'[:count > 1]}" for count in clients],
            {name: [speed[name, count].median for count in clients]
             for name in peers}))


def check(bench, workload, speed):
    for mode, peer, limit in (("CPU-bound", "by hand, expiry", 1.25),
                              ("CPU-bound", "by hand",
                               1.05 if workload == "W1" else 1.0),
                              ("durable", "by hand, expiry", 1.0),
                              ("durable", "by hand", 1.0)):
        if mode not in speed:
            continue
        bench.report.target(
            workload, f"throughput against “{peer}”, {mode}", limit,
            min(ratios(speed[mode], "idem_tool", peer)), least=True)


def ratios(speed, mine, peer):
    """One for each number of clients."""
    return [speed[mine, count].over(speed[peer, count]).median
            for name, count in speed.values if name == mine]
