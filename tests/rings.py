"""Rings of tests, as a pytest plugin: which ring runs, how much it may start, what took how long.

Unmarked tests are the first ring; the marks `second` and `extra` name the others. Without `--ring`
all that is asked for runs. The first ring fails when it starts more servers, databases or browsers
than it may. Times only warn: machines differ.
"""

import os
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from tests.processors import best_isa
from tests.run_folder import VARIABLE, run_folder

RINGS = ("first", "second", "extra")
MOST_STARTED = {"server": 6, "postgres": 1, "browser": 1}
MOST_CPU_S = 20.0
MOST_MINUTES = {
    "first": {"avx512": 8, "avx2": 15, "portable": 30},
    "second": {"avx512": 15, "avx2": 25, "portable": 60},
}
SLOWEST = 40

_SERVERS = {"tests.diagnosis.own_server", "tests.soaks.served", "tests.chaos"}
_CPU_S = "cpu_s"


def kind_of(command):
    """What a command starts: `server`, `postgres`, `browser`, or None. Pure."""
    words = [os.fsdecode(word) for word in command]
    name = Path(words[0]).name
    if name in ("postgres", "pg_ctl") and not {"--version", "stop"} & set(words):
        return "postgres"
    if words[-1] == "run-driver":  # Playwright's, which starts the browser
        return "browser"
    serves = any(
        Path(program).name == "sessiond" and verb == "serve" for program, verb in pairwise(words)
    )
    return "server" if serves or _SERVERS & set(words) else None


def ring_of(item):
    """The ring that a test is in."""
    marked = [name for name in RINGS[1:] if item.get_closest_marker(name)]
    return marked[-1] if marked else RINGS[0]


def pytest_addoption(parser):
    parser.addoption("--ring", choices=RINGS, help="run this ring alone")


def pytest_configure(config):
    if VARIABLE not in os.environ:
        config.pluginmanager.register(Run(config.getoption("--ring")))
    folder = run_folder()

    def note_process(event, args):
        if event == "subprocess.Popen" and folder.exists():
            kind = kind_of([args[1]] if isinstance(args[1], str | bytes) else args[1])
            if kind is not None:
                with (folder / "started").open("a", encoding="utf-8") as started:
                    started.write(f"{kind}\n")

    sys.addaudithook(note_process)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    ring = config.getoption("--ring")
    if ring:
        others = [item for item in items if ring_of(item) != ring]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if ring_of(item) == ring]
    if ring and config.getoption("lf", default=False):
        # pytest runs all where no known failure is selected: the other part of the ring has them
        failed = config.cache.get("cache/lastfailed", {})
        names = {name for item in items for name in (item.nodeid, item.nodeid.split("::")[0])}
        if failed and not names & set(failed):
            config.hook.pytest_deselected(items=list(items))
            items.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    now_s = sum(os.times()[:4])
    report.user_properties.append((_CPU_S, now_s - item.session.stash.get(_CPU_KEY, now_s)))
    item.session.stash[_CPU_KEY] = now_s
    return report


_CPU_KEY = pytest.StashKey[float]()


class Run:
    """Owns the run's folder, and adds up what its tests took. In the process that began the run."""

    def __init__(self, ring):
        self._ring = ring
        self._folder = Path(tempfile.mkdtemp(prefix="sessiond-tests-"))
        self._folder.chmod(0o755)  # a Postgres runs as another user
        os.environ[VARIABLE] = str(self._folder)
        self._began_s = time.monotonic()
        self._folders = defaultdict(float)
        self._tests = Counter()
        self._cpu_s = Counter()

    def pytest_runtest_logreport(self, report):
        self._tests[report.nodeid] += report.duration
        self._folders[report.nodeid.split("::")[0].rpartition("/")[0]] += report.duration
        self._cpu_s[report.nodeid] += dict(report.user_properties).get(_CPU_S, 0.0)

    def too_many(self):
        """Of what the first ring has started more than it may, how many."""
        path = self._folder / "started"
        found = Counter(path.read_text(encoding="utf-8").split() if path.exists() else ())
        bounded = MOST_STARTED if self._ring == RINGS[0] else {}
        return {kind: found[kind] for kind, most in bounded.items() if found[kind] > most}

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        if self.too_many() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if len(self._tests) > 1:
            self._show_times(terminalreporter)
        for kind, count in self.too_many().items():
            most = MOST_STARTED[kind]
            terminalreporter.write_line(
                f"FAILED: {kind} processes of the first ring must be at most {most} (got {count})"
            )

    def _show_times(self, terminal):
        minutes = (time.monotonic() - self._began_s) / 60
        ring = f"{self._ring} ring" if self._ring else "what was asked for"
        terminal.section(f"{ring}: {len(self._tests)} tests in {minutes:.1f} min, {best_isa()}")
        for folder, seconds in sorted(self._folders.items(), key=lambda one: -one[1]):
            terminal.write_line(f"{seconds:7.1f} s  {folder}")
        terminal.section(f"the {SLOWEST} slowest tests")
        for test, seconds in self._tests.most_common(SLOWEST):
            terminal.write_line(f"{seconds:7.1f} s  {test}")
        most = MOST_MINUTES.get(self._ring, {}).get(best_isa())
        if most is not None and minutes > most:
            terminal.write_line(f"WARNING: {minutes:.1f} min is above the limit of {most}")
        for test, seconds in self._cpu_s.items():
            if self._ring == RINGS[0] and seconds > MOST_CPU_S:
                terminal.write_line(f"WARNING: {seconds:.0f} s of CPU in {test}")

    def pytest_unconfigure(self):
        if (self._folder / "postgres").exists():
            from tests.store.postgres import stop_shared_postgres

            stop_shared_postgres(self._folder)
        shutil.rmtree(self._folder, ignore_errors=True)
        del os.environ[VARIABLE]
