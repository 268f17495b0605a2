"""What larger pages cost: slots of contexts' last pages that no token fills.

    python -m benchmarks.page_sizes TRACE...    # CSV or JSON lines, packed or not

Of each request counts the context at its end, `input_len` + `output_len` tokens.
"""

import csv
import gzip
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PAGES = (16, 32, 64, 128, 256, 512)


def wasted_share(contexts: Sequence[int], page: int) -> float:
    """Return the share of all slots that stay empty when contexts fill pages of `page` tokens."""
    slots = sum(-(-tokens // page) * page for tokens in contexts)
    return 1 - sum(contexts) / slots


def context_lengths(path: Path) -> list[int]:
    """Read the contexts of a trace."""
    return [int(row["input_len"]) + int(row["output_len"]) for row in _rows(path)]


def _rows(path: Path) -> Iterator[Mapping[str, str | int]]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    if ".csv" in path.suffixes:
        yield from csv.DictReader(text.splitlines())
    else:
        yield from map(json.loads, text.splitlines())


def main(paths: Sequence[str]) -> None:
    """Print a line for each trace."""
    print(f"{'trace':32}{'contexts':>9}{'median':>8}", *(f"{page:>6}" for page in PAGES))
    for path in map(Path, paths):
        contexts = sorted(context_lengths(path))
        shares = (f"{wasted_share(contexts, page):6.1%}" for page in PAGES)
        median = contexts[len(contexts) // 2]
        print(f"{path.name.split('.')[0]:32}{len(contexts):>9}{median:>8}", *shares)


if __name__ == "__main__":
    main(sys.argv[1:])
