#!/usr/bin/python3
"""Does each driver do what docs/drivers.md says?  Prints TAP.

    check.py PROBE...

A probe talks to the server that the PG* variables lead to, and prints rows
"| table | driver | ... |".  Each is a row of that table in the document.
"""

import os
import pathlib
import re
import subprocess
import sys

import psycopg

HERE = pathlib.Path(__file__).resolve().parent
JAR = "/usr/share/java/postgresql.jar"
PYTHON = "/usr/bin/python3"

PROBES = {
    **{name: [PYTHON, f"probe_{name}.py"] for name in
       ("psycopg", "psycopg2", "asyncpg", "sqlalchemy", "django")},
    "lost_answer": [PYTHON, "-m", "unittest", "-q", "test_lost_answer"],
    "node-postgres": ["node", "pg.js"],
    "postgres.js": ["node", "postgres.js"],
    "jdbc": ["java", "-cp", JAR, "Probe.java"],
    "go": ["go", "run", "probe.go"],
    "ruby": ["ruby", "probe.rb"],
    "php": ["php", "probe.php"],
}
TABLES = {
    "transactions": "Transactions",
    "jsonb": "Results",
    "times": "Leases and tokens",
    "time-outs": "Time-outs",
    "repetition": "Statements that are repeated",
}


def sections():
    """The rows of each section of the document."""
    text = (HERE / "../../docs/drivers.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.*)\n", text, flags=re.M)
    return {heading: [line for line in part.splitlines()
                      if line.startswith("| ")]
            for heading, part in zip(parts[1::2], parts[2::2])}


def run(name):
    """What a probe prints, and whether it came to its end."""
    directory = HERE / "node" if PROBES[name][0] == "node" else HERE
    environment = {**os.environ, "GO111MODULE": "off", "PYTHONWARNINGS": "ignore",
                   "PYTHONDONTWRITEBYTECODE": "1", "GOPATH": "/usr/share/gocode"}
    with psycopg.connect(autocommit=True) as db:
        db.execute("TRUNCATE idempotency_keys")
    done = subprocess.run(PROBES[name], cwd=directory, env=environment,
                          stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.splitlines(), done.returncode == 0


def main():
    documented = sections()
    count = failed = 0

    def report(good, what):
        nonlocal count, failed
        count += 1
        failed += not good
        print(f"{'ok' if good else 'not ok'} {count} - {what}", flush=True)

    for name in sys.argv[1:]:
        lines, ended = run(name)
        report(ended, f"{name} has run")
        for line in lines:
            if not line.startswith("| "):
                print(line)
                continue
            _, table, row = line.split("|", 2)
            heading = TABLES[table.strip()]
            report(f"|{row}" in documented.get(heading, []), f"{heading}: |{row}")
    print(f"1..{count}")
    sys.exit(failed > 0)


main()
