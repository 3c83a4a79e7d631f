"""The peers outside of PostgreSQL: Redis, and a library of npm on top.

All are driven by the same program in node, and so is idem_tool here.
"""

import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

from figures import Rounds, rotated
from server import HERE, run, wait_until
from wire import MODES
import plot

# what drives each of them, and Redis's appendfsync
PEERS = {
    "idem_tool": ("idem", None),
    "by hand": ("hand", None),
    "Redis, always": ("redis", "always"),
    "Redis, everysec": ("redis", "everysec"),
    "library, always": ("library", "always"),
    "library, everysec": ("library", "everysec"),
}


def outside(bench):
    bench.report.section("Redis and a library, through node")
    missing = [program for program in ("node", "npm", "redis-server",
                                       "redis-cli")
               if not shutil.which(program)]
    if missing:
        bench.report.text(f"Not measured: there is no {', '.join(missing)}.")
        return
    with tempfile.TemporaryDirectory(dir=bench.server.socket) as directory:
        driver = Path(directory, "node")
        shutil.copytree(HERE / "node", driver, ignore=shutil.ignore_patterns(
            "node_modules"))
        try:
            run(["npm", "ci", "--silent", "--no-audit", "--no-fund"],
                directory=driver)
        except RuntimeError as error:
            bench.report.text("Not measured: npm could not install the"
                              f" clients: {error}")
            return
        with redis(directory) as command:
            measure(bench, driver / "driver.js", directory, command)


@contextmanager
def redis(directory):
    """A private Redis; yields a function that sends it a command."""
    process = subprocess.Popen(
        ["redis-server", "--port", "0", "--unixsocket", "redis.sock",
         "--dir", directory, "--appendonly", "yes", "--save", "",
         "--loglevel", "warning"],
        cwd=directory, stdout=subprocess.DEVNULL)

    def command(*words):
        return run(["redis-cli", "-s", f"{directory}/redis.sock", *words])

    try:
        wait_until(Path(directory, "redis.sock").exists)
        command.pid = process.pid
        yield command
    finally:
        process.terminate()
        process.wait()


def measure(bench, driver, directory, command):
    clients = (4,) if bench.quick else (1, 4, 16)
    bench.server.configure(**MODES["durable"])
    speed = Rounds()
    for turn in range(bench.durable_rounds):
        for count in clients:
            for name in rotated(PEERS, turn):
                speed.add((name, count), drive(
                    bench, driver, directory, command, count, *PEERS[name]))
    show(bench, clients, speed)


def drive(bench, driver, directory, command, clients, kind, appendfsync):
    if appendfsync:
        command("CONFIG", "SET", "appendfsync", appendfsync)
        address = directory
    else:
        address = bench.server.socket
    words = ["node", str(driver), kind, str(clients), str(bench.seconds),
             address]
    if clients > 1:
        return float(run(words))
    with bench.server.on_one_core(command.pid):
        return float(run(words))


def show(bench, clients, speed):
    version = run(["redis-server", "--version"]).split()[2]
    bench.report.text(
        "Reserve and complete, durable (fsync on), driven by one process of"
        f" node {run(['node', '--version']).strip()}, with the clients"
        f" `pg` and `redis`; Redis {version}, with an append-only file:"
        " SET NX EX, then SET, with appendfsync as named; everysec may lose a"
        " second of reservations in a crash. Library: `@node-idempotency/core`"
        " with its adapter for Redis; it has none for PostgreSQL. All over"
        " Unix sockets.")
    header = ["durable"]
    for count in clients:
        header += [f"{count} client{'s'[:count > 1]}, per second",
                   "idem_tool is"]
    rows = []
    for name in PEERS:
        row = [name]
        for count in clients:
            mine = speed["idem_tool", count]
            row += [speed[name, count].text(), "" if name == "idem_tool" else
                    f"{mine.over(speed[name, count]).text()} ×"]
        rows.append(row)
    bench.report.table(header, rows)
    bench.report.plot("outside", "Redis and a library", plot.bars(
        "Reserve + complete through node, durable", "per second",
        [f"{count} client{'s'[:count > 1]}" for count in clients],
        {name: [speed[name, count].median for count in clients]
         for name in PEERS}))
    for count in clients:
        bench.report.target(
            "W1", "through node, durable, against Redis with appendfsync"
            f" always, {count} client{'s'[:count > 1]}", 1.0,
            speed["idem_tool", count].over(
                speed["Redis, always", count]).median, least=True)
