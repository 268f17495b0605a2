"""`python -m tests.mutants`: what the tests find of 40 mutants, and a table of it.

    python -m tests.mutants.reach                  # first: which tests run which lines
    python -m tests.mutants --seed 11 --count 40   # writes build/mutants/table.md

Each mutant lives in a copy of the tree of its own. The test files of the first ring that run its
line go first, those with most such tests foremost, until one fails; what survives meets the second
ring's files of the same areas. A run that does not end counts as a failure.
"""

import argparse
import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.drawing import Mutant, draw
from tests.mutants.modules import MODULES, SECOND_RING, UNTRACED
from tests.mutants.reach import ROOT, Reach, load

TABLE = ROOT / "build" / "mutants" / "table.md"
LIMIT_S = 1200.0
_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "build", "node_modules", "__pycache__", ".*_cache"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Where a mutant was found: `first`, `second` or nowhere (`survived`), and by which test."""

    name: str
    mutant: Mutant
    ring: str
    test: str


def mutants(seed: int, count: int) -> list[tuple[str, Mutant]]:
    """As many of each module, with its name."""
    each = count // len(MODULES)
    return [
        (name, mutant)
        for name, module in MODULES.items()
        for mutant in draw(module, (ROOT / module).read_text(encoding="utf-8"), each, seed)
    ]


def first_ring(mutant: Mutant, reach: Reach) -> list[str]:
    """Test files that reach the module: those that run the line, with most such tests foremost.

    Raises:
        ValueError: none does.
    """
    if mutant.module in UNTRACED:
        return list(UNTRACED[mutant.module])
    lines = reach.get(mutant.module, {})
    nearest = lines.get(mutant.line, Counter()).most_common()
    others = sum(lines.values(), Counter()).most_common()
    files = list(dict.fromkeys(file for file, _ in [*nearest, *others]))
    if not files:
        raise ValueError(f"{mutant.module} must be reached by a test: run tests.mutants.reach")
    return files


@contextlib.contextmanager
def copied_tree() -> Iterator[Path]:
    """A copy of the repository, with an index: tests of the documentation list the files."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=_LEFT_OUT)
        for words in ("init --quiet", "add ."):
            subprocess.run(["git", *words.split()], cwd=tree, check=True)
        yield tree


def judge(name: str, mutant: Mutant, reach: Reach) -> Verdict:
    """Run one mutant.

    Raises:
        RuntimeError: a test fails without the fault, too.
    """
    with copied_tree() as tree:
        path = tree / mutant.module
        path.write_text(mutant.applied(path.read_text(encoding="utf-8")), encoding="utf-8")
        for library in tree.rglob("*.so") if mutant.module.endswith(".c") else ():
            library.unlink()  # the tests build it anew
        for ring, files in (("first", first_ring(mutant, reach)), ("second", SECOND_RING[name])):
            failure = _first_failure(tree, ring, files)
            if failure:
                return Verdict(name=name, mutant=mutant, ring=ring, test=failure)
    return Verdict(name=name, mutant=mutant, ring="survived", test="")


def _first_failure(tree: Path, ring: str, files: list[str]) -> str:
    """The first test that finds the mutant: its file fails twice with it, and passes without.

    Raises:
        RuntimeError: a test fails without the fault, too.
    """
    passed_over: list[str] = []  # a test that failed for another reason, such as the machine's load
    while failure := _failure(tree, ring, [*files, *passed_over]):
        test = failure.split(" ", 1)[-1]
        if "::" not in test:
            return failure
        if _failure(tree, ring, [test.split("::")[0], *passed_over]):
            if fails_anyway(test, ring):
                raise RuntimeError(f"{failure} fails without a fault")
            return failure
        passed_over += ["--deselect", test]
    return ""


@functools.cache
def fails_anyway(test: str, ring: str) -> bool:
    """Whether a test fails without a fault, so that it finds nothing."""
    with copied_tree() as tree:
        return bool(_failure(tree, ring, [test]))


def _failure(tree: Path, ring: str, files: list[str]) -> str:
    """The first test that fails; empty: none does."""
    command = [sys.executable, "-m", "pytest", "--ring", ring, "-x", "-q", "-p", "no:cacheprovider"]
    command += ["--timeout", "120", *files]
    try:
        done = subprocess.run(
            command,
            check=False,
            cwd=tree,
            env={**_environment(), "PYTHONPATH": str(tree)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {LIMIT_S:.0f} s"
    if done.returncode in {0, 5}:
        return ""
    marks = ("FAILED tests/", "ERROR tests/")  # a log's lines may begin with ERROR, too
    failed = [line for line in done.stdout.splitlines() if line.startswith(marks)]
    return failed[0].split(" - ")[0] if failed else f"exit status {done.returncode}"


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "TESTS_RUN_FOLDER"}


def table(verdicts: list[Verdict], seed: int) -> str:
    """Markdown: a row per mutant, and the shares."""
    rings, total = Counter(one.ring for one in verdicts), len(verdicts)
    both = rings["first"] + rings["second"]
    rows = [
        (
            f"Seed {seed}: {total} mutants, {rings['first']} found in the first ring "
            f"({rings['first'] / total:.0%}), {both} in the first two ({both / total:.0%}).\n"
        ),
        "| module | mutant | found in | by |",
        "| --- | --- | --- | --- |",
    ]
    for one in verdicts:
        shown = str(one.mutant).replace("|", r"\|")
        rows.append(f"| {one.name} | {shown} | {one.ring} | `{one.test}` |")
    return "\n".join(rows) + "\n"


def main() -> None:
    """Judge all; two at a time."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--only", choices=MODULES)
    given = parser.parse_args()
    drawn = [one for one in mutants(given.seed, given.count) if given.only in (None, one[0])]
    reach = load()
    verdicts = []
    with ThreadPoolExecutor(2) as pool:
        for verdict in pool.map(lambda one: judge(*one, reach), drawn):
            verdicts.append(verdict)
            sys.stdout.write(f"{verdict.ring:9} {verdict.mutant} {verdict.test}\n")
            sys.stdout.flush()
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    TABLE.write_text(table(verdicts, given.seed), encoding="utf-8")
    sys.stdout.write(TABLE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
