"""docs/benchmarks.md against what there is to run."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"


def runnable_modules():
    for path in (ROOT / "benchmarks").rglob("*.py"):
        if '__name__ == "__main__"' in path.read_text(encoding="utf-8"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(part for part in parts if part != "__main__")


def test_every_benchmark_is_on_the_page_and_exists():
    on_page = set(re.findall(r"python -m (benchmarks\.[\w.]+)", PAGE.read_text(encoding="utf-8")))
    assert on_page | {"benchmarks"} == set(runnable_modules())  # `make bench` runs the package
