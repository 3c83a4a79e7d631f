"""The server that is measured, and pgbench against it."""

import os
import re
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import psycopg

HERE = Path(__file__).parent


class Server:
    """A running server, which belongs to whoever calls us."""

    def __init__(self, socket, bindir):
        self.socket = socket
        self.bindir = bindir
        record = Path(socket, "data/postmaster.pid").read_text()
        self.pid = int(record.split("\n")[0])

    def connect(self, dbname="postgres", **options):
        return psycopg.connect(host=self.socket, user="postgres",
                               dbname=dbname, autocommit=True, **options)

    def query(self, sql, parameters=None, dbname="postgres"):
        """Run one statement; the rows, if there are any."""
        with self.connect(dbname) as db:
            cursor = db.execute(sql, parameters)
            return cursor.fetchall() if cursor.description else []

    def configure(self, **settings):
        """Set them for the whole server; two underscores are a dot."""
        with self.connect() as db:
            for name, value in settings.items():
                name = name.replace("__", ".")
                db.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            db.execute("SELECT pg_reload_conf()")
        # the postmaster passes it on when it comes to it
        for name, value in settings.items():
            shown = f"SHOW {name.replace('__', '.')}"
            wait_until(lambda: self.query(shown) == [(value,)])

    def new_database(self, dbname, keys=0):
        """With the extension, the peers' tables and some settled keys."""
        self.drop_database(dbname)
        self.query(f"CREATE DATABASE {dbname}")
        with self.connect(dbname) as db:
            db.execute("CREATE EXTENSION idem_tool")
            db.execute((HERE / "sql/schema.sql").read_text())
            if keys:
                db.execute("SELECT fill(1, %s)", (keys,))
                db.execute("SELECT fill_peers()")
            db.execute("VACUUM ANALYZE")
            db.execute("CHECKPOINT")

    def drop_database(self, dbname):
        self.query(f"DROP DATABASE IF EXISTS {dbname} WITH (FORCE)")

    @contextmanager
    def on_one_core(self, *others):
        """What connects within, what is started, and others, share one core.

        A single client is otherwise slower than two: each message wakes a
        core that has gone to sleep.
        """
        cores = os.sched_getaffinity(0)
        try:
            for pid in (0, self.pid, *others):
                os.sched_setaffinity(pid, {min(cores)})
            yield
        finally:
            for pid in (0, self.pid, *others):
                os.sched_setaffinity(pid, cores)

    def children(self):
        """Process ids of the server's processes."""
        listed = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(pid) for pid in listed.read_text().split()]

    def pgbench(self, script, *, clients=1, seconds=None, transactions=None,
                dbname="bench", schema="public", variables=None,
                setting=None, rate=None):
        """Run a script of sql/; how often in a second it did."""
        command = [f"{self.bindir}/pgbench", "-h", self.socket,
                   "-U", "postgres", "-n", "-M", "prepared",
                   "-c", str(clients), "-j", str(min(clients, 2)),
                   "-f", str(HERE / f"sql/{script}.sql")]
        command += (["-T", str(seconds)] if seconds
                    else ["-t", str(transactions)])
        if rate:
            command += ["-R", str(rate)]
        for name, value in (variables or {}).items():
            command += ["-D", f"{name}={value}"]
        options = f"-c search_path={schema},public"
        if setting:
            options += f" -c {setting}"
        environment = dict(os.environ, PGOPTIONS=options)
        if clients == 1:
            with self.on_one_core():
                output = run([*command, dbname], environment)
        else:
            output = run([*command, dbname], environment)
        return float(re.search(r"tps = ([\d.]+) \(without", output).group(1))


def wait_until(condition, seconds=60):
    """Ask again until it is so."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("waited in vain")
        time.sleep(0.01)


def run(command, environment=None, directory=None):
    """The output of a command that must succeed."""
    process = subprocess.Popen(command, env=environment, cwd=directory,
                               text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT)
    try:
        output, _ = process.communicate()
    except BaseException:
        # not kill(): it may have something to clean up
        process.terminate()
        process.wait()
        raise
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{output}")
    return output


def cpu_seconds(pid):
    """Processor time that a process has used; 0 if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    fields = stat.rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
