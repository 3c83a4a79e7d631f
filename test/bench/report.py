"""What a run has found: sections of tables and plots, and the targets."""

import datetime
import os
import platform
import re
import subprocess
from pathlib import Path

from figures import number


class Report:
    """Collected while the run goes on, written at its end."""

    def __init__(self):
        self.body = []
        self.plots = {}
        self.targets = []
        self.brief = []
        self.failures = []

    def section(self, title):
        print(f"\n{title}\n", flush=True)
        self.body += [f"## {title}", ""]

    def text(self, words):
        print(words, flush=True)
        self.body += [words, ""]

    def table(self, header, rows):
        lines = ["| " + " | ".join(str(cell) for cell in row) + " |"
                 for row in (header, *rows)]
        lines.insert(1, "|" + "---|" * len(header))
        self.text("\n".join(lines))

    def plot(self, name, title, svg):
        self.plots[f"{name}.svg"] = svg
        self.body += [f"![{title}]({name}.svg)", ""]

    def target(self, workload, what, limit, value, least=False):
        """One of what we want to reach: at most limit, or at least."""
        met = value >= limit if least else value <= limit
        self.targets.append((workload, what,
                             f"{'≥' if least else '≤'} {limit:g}",
                             number(value),
                             "yes" if met else "**no**"))

    def in_short(self, what, words):
        """A row for the README."""
        self.brief.append((what, words))

    def failed(self, name, error):
        self.failures.append(name)
        words = str(error).strip().splitlines() or [""]
        self.text(f"**{name} failed, and what it had still to measure is"
                  f" missing**: {type(error).__name__}:"
                  f" {words[-1]}")

    def write(self, directory, facts):
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        for old in directory.glob("*.svg"):
            old.unlink()
        for name, svg in self.plots.items():
            (directory / name).write_text(svg)
        body, self.body = self.body, []
        self.body += ["# Results", "", "Written by `test/bench/run.sh`; "
                      "[performance.md](../performance.md) says how to read"
                      " it.", ""]
        if self.brief:
            self.section("In short")
            self.table(("", ""), self.brief)
        if self.targets:
            self.section("Targets")
            self.table(("", "", "target", "figure", "met"), self.targets)
        self.body += body
        self.section("Where and how")
        self.table(("", ""), facts)
        (directory / "results.md").write_text(
            "\n".join(self.body).rstrip() + "\n")


def machine(server):
    """The machine, the versions, and the settings that are not defaults."""
    processor = re.search(r"model name\s*: (.*)",
                          Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+)",
                       Path("/proc/meminfo").read_text())
    filesystem = subprocess.run(
        ["stat", "-f", "-c", "%T", server.socket], text=True,
        capture_output=True, check=True).stdout.strip()
    settings = server.query(
        "SELECT name, current_setting(name) FROM pg_settings WHERE source IN"
        " ('command line', 'configuration file') AND name !~ '^(lc_|log_|"
        "data_directory|config_file|hba_file|ident_file|unix_socket|"
        "default_text|TimeZone|DateStyle|listen)' ORDER BY name")
    return [
        ("date", datetime.date.today().isoformat()),
        ("processor", processor.group(1) if processor
         else platform.processor()),
        ("cores", len(os.sched_getaffinity(0))),
        ("memory", f"{int(memory.group(1)) / 2 ** 20:.1f} GB"),
        ("kernel", platform.release()),
        ("file system", filesystem),
        ("server", server.query("SHOW server_version")[0][0]),
        ("idem_tool", server.query(
            "SELECT default_version FROM pg_available_extensions"
            " WHERE name = 'idem_tool'")[0][0]),
        ("settings at the end",
         "<br>".join(f"{name} = {value}" for name, value in settings)),
    ]
