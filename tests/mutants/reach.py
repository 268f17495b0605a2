"""Which test files run which lines of a module, by a run of the first ring under `coverage`.

    python -m tests.mutants.reach    # once, some minutes; writes build/mutants/reach.json

Lines of C, and of SQL in greenlets, belong to no test: `UNTRACED` names their files.
"""

import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.modules import MODULES

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "build" / "mutants" / "reach.json"
_PROCESSES = 2

Reach = dict[str, dict[int, Counter[str]]]
"""By module and line: test files, and how many of their tests run the line."""


def load() -> Reach:
    """What the last run has found.

    Raises:
        FileNotFoundError: there was none.
    """
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    return {
        module: {int(line): Counter(tests) for line, tests in lines.items()}
        for module, lines in record.items()
    }


def trace() -> bool:
    """Run the first ring's tests under `coverage`, a context per test; write what reaches what.

    Two processes run half of the files each. False: a test has failed, so what it reaches behind
    its failure is missing.
    """
    files = sorted(map(str, (ROOT / "tests").rglob("test_*.py")))
    sources = "\n    ".join(str(ROOT / name) for name in MODULES.values())
    with tempfile.TemporaryDirectory() as folder:
        runs, records = [], []
        for number in range(_PROCESSES):
            config, data = Path(folder) / f"coveragerc{number}", Path(folder) / f"coverage{number}"
            config.write_text(
                f"[run]\ndata_file = {data}\ndynamic_context = test_function\ncore = ctrace\n"
                f"include =\n    {sources}\n"
            )
            command = [sys.executable, "-m", "coverage", "run", f"--rcfile={config}"]
            ring = ["-m", "pytest", "-m", "not second and not extra", "-p", "no:cacheprovider"]
            runs.append(subprocess.Popen([*command, *ring, *files[number::_PROCESSES]], cwd=ROOT))
            records.append(data)
        passed = [run.wait() == 0 for run in runs]
        RECORD.parent.mkdir(parents=True, exist_ok=True)
        RECORD.write_text(json.dumps(_read(records)), encoding="utf-8")
    return all(passed)


def _read(records: Sequence[Path]) -> Reach:
    from coverage import CoverageData

    measured = CoverageData(no_disk=True)
    for record in records:
        part = CoverageData(str(record))
        part.read()
        measured.update(part)
    reach: Reach = {}
    for path in measured.measured_files():
        lines: defaultdict[int, Counter[str]] = defaultdict(Counter)
        for line, contexts in measured.contexts_by_lineno(path).items():
            for file in map(_file_of, contexts):
                if file:
                    lines[line][file] += 1
        reach[Path(path).relative_to(ROOT).as_posix()] = dict(lines)
    return reach


def _file_of(context: str) -> str:
    """The test file of a context such as `tests.kv.test_block_pool.TestPool.test_take`."""
    parts = context.split(".")
    for end in range(len(parts), 0, -1):
        path = "/".join(parts[:end]) + ".py"
        if parts[end - 1].startswith("test_") and (ROOT / path).is_file():
            return path
    return ""


if __name__ == "__main__":
    sys.exit(not trace())
