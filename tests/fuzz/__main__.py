"""`python -m tests.fuzz`: fuzz every reader, and print how many inputs each was given.

    python -m tests.fuzz --runs 20000            # all targets
    python -m tests.fuzz frame gguf --runs 1000  # some

Each target gets `--runs` inputs guided by coverage (atheris, where it is installed) or mutated at
random (where not), and requests as many that are made by structure (hypothesis). What was found
stands in the output, with the input; the exit status is then not 0.
"""

import argparse
import random
import re
import subprocess
import sys
import time
from importlib.util import find_spec

from hypothesis import HealthCheck, given, seed, settings

from tests.fuzz.mutations import mutated
from tests.fuzz.structured import STRUCTURED, as_bytes
from tests.fuzz.targets import TARGETS

_DONE = re.compile(r"^Done (\d+) in ", re.MULTILINE)


def by_structure(name: str, runs: int, start: int) -> int:
    """Give a target requests that hypothesis makes; how many."""
    tried = 0

    @seed(start)
    @settings(
        max_examples=runs, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(STRUCTURED[name])
    def one(text):
        nonlocal tried
        tried += 1
        TARGETS[name].judge(as_bytes(text))

    one()
    return tried


def at_random(name: str, runs: int, start: int) -> int:
    """Give a target inputs that are mutated blindly; how many."""
    draw = random.Random(start)
    target = TARGETS[name]
    for data in target.seeds:
        target.judge(data)
    for number in range(runs):
        data = mutated(draw, target.seeds)
        try:
            target.judge(data)
        except Exception:
            print(f"{name}: seed {start}, input {number} is {data!r}", file=sys.stderr)
            raise
    return len(target.seeds) + runs


def by_coverage(name: str, runs: int, start: int) -> int:
    """Give a target inputs that atheris makes, in a process of its own; how many."""
    command = [sys.executable, "-m", "tests.fuzz.guided", name, str(runs), str(start)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    found = _DONE.search(done.stderr + done.stdout)
    if done.returncode or found is None:
        raise AssertionError(f"{name}: {(done.stdout + done.stderr)[-6000:]}")
    return int(found[1])


def ways(name: str):
    """How a target is fuzzed here: each way's name and function."""
    if name in STRUCTURED:
        yield "structure", by_structure
    if find_spec("atheris") is None:
        yield "random", at_random
    else:
        yield "coverage", by_coverage


def main() -> None:
    """Fuzz what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("targets", nargs="*", default=[], help=", ".join(TARGETS))
    parser.add_argument("--runs", type=int, default=2000, help="inputs of each way and target")
    parser.add_argument("--seed", type=int, default=20260701)
    asked = parser.parse_args()
    if unknown := set(asked.targets) - TARGETS.keys():
        parser.error(f"{', '.join(sorted(unknown))}: known are {', '.join(TARGETS)}")
    print(f"seed {asked.seed}\n{'target':<15}{'by':<11}{'inputs':>9}{'seconds':>9}")
    total = 0
    for name in asked.targets or TARGETS:
        for way, fuzz in ways(name):
            began = time.monotonic()
            tried = fuzz(name, asked.runs, asked.seed)
            total += tried
            print(f"{name:<15}{way:<11}{tried:>9}{time.monotonic() - began:>9.1f}", flush=True)
    print(f"{'all':<26}{total:>9}   nothing found")


if __name__ == "__main__":
    main()
