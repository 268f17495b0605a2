"""`python -m benchmarks.quality`: KL, top-1, perplexity and replies of each precision.

Teacher-forced over all dialogues of `tests/data`, cut into windows of 512 tokens of which the
second halves count; greedy replies of up to 64 tokens to the first message of 50 of them. The
reference is torch in float32. `--llama FOLDER` (with llama-perplexity and llama-server) puts
llama.cpp on the same file and the same ids beside it.
"""

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from benchmarks.quality import llama
from benchmarks.quality.measures import (
    Agreement,
    Distances,
    Quality,
    Words,
    agree,
    compare,
    pack,
    row_words,
    summarize,
)
from benchmarks.quality.ours import PRECISIONS, REFERENCE, Ours, Precision
from benchmarks.quality.texts import WINDOW, Ids, Texts, load_texts
from engine.files.catalog import DEFAULT_MODEL, resolve_model
from engine.files.spec_reader import read_spec

_RESULTS = Path(__file__).parents[1] / "results"
_REPLY_TOKENS = 64
_DIALOGUES = 50
_QUICK_WINDOWS, _QUICK_DIALOGUES = 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One precision, or one peer."""

    name: str
    arithmetic: str
    kv_bytes_per_token: int
    quality: Quality
    agreement: Agreement


class Bench:
    """Texts, and what the reference made of them: log-probabilities in a file, replies."""

    def __init__(self, model: Path, texts: Texts, base: Path) -> None:
        self._model = model
        self._texts = texts
        self._base = base
        self._vocab = read_spec(model).vocab_size
        self._longest = max(WINDOW, *(len(one) + _REPLY_TOKENS for one in texts.prompts))
        self._replies: list[list[int]] = []

    def reference(self) -> Row:
        """Run the reference, which everything else is compared with."""
        ours, windows = self._ours(REFERENCE), self._texts.windows
        itself: list[Distances] = []
        llama.write_base(self._base, windows, self._vocab, self._packed(ours, itself))
        self._replies = self._reply(ours)
        return self._row(REFERENCE, ours, itself, self._replies)

    def measured(self, precision: Precision) -> Row:
        """Run one precision."""
        ours = self._ours(precision)
        return self._row(precision, ours, self._distances(ours), self._reply(ours))

    def peer(self, folder: Path) -> Row:
        """Run llama.cpp."""
        stop = min(self._texts.stop_ids)
        found = llama.replies(folder, self._model, self._texts.prompts, stop, _REPLY_TOKENS)
        return Row(
            name="llama.cpp",
            arithmetic="as it comes: int8 activations, KV float16",
            kv_bytes_per_token=0,
            quality=llama.measure_distances(folder, self._model, self._base),
            agreement=agree(self._stops_alike(self._replies), self._stops_alike(found)),
        )

    def _ours(self, precision: Precision) -> Ours:
        return Ours(self._model, precision, self._longest)

    def _reply(self, ours: Ours) -> list[list[int]]:
        return ours.replies(self._texts.prompts, self._texts.stop_ids, _REPLY_TOKENS)

    def _row(
        self,
        precision: Precision,
        ours: Ours,
        distances: Iterable[Distances],
        replies: list[list[int]],
    ) -> Row:
        return Row(
            name=precision.name,
            arithmetic=ours.arithmetic,
            kv_bytes_per_token=ours.kv_bytes_per_token,
            quality=summarize(distances),
            agreement=agree(self._replies, replies),
        )

    def _packed(self, ours: Ours, distances: list[Distances]) -> Iterator[Words]:
        """The reference's rows; their distances from what they were packed from are added."""
        windows = self._texts.windows
        for window, logits in zip(windows, ours.window_logits(windows), strict=True):
            rows = pack(logits)
            distances.append(compare(rows, logits, window[WINDOW // 2 + 1 :]))
            yield rows

    def _distances(self, ours: Ours) -> Iterator[Distances]:
        windows = self._texts.windows
        logits = ours.window_logits(windows)
        for window, rows, found in zip(windows, self._rows(windows), logits, strict=True):
            yield compare(rows, found, window[WINDOW // 2 + 1 :])

    def _rows(self, windows: Ids) -> Iterator[Words]:
        words, start = row_words(self._vocab), llama.rows_start(windows)
        mapped = np.memmap(self._base, dtype=np.uint16, mode="r", offset=start)
        yield from mapped.reshape(len(windows), WINDOW // 2 - 1, words)

    def _stops_alike(self, replies: list[list[int]]) -> list[list[int]]:
        """Replies in which any stop id is the same one: the peer does not say which it drew."""
        stops = self._texts.stop_ids
        return [[min(stops) if token in stops else token for token in one] for one in replies]


def main(
    *,
    model: Annotated[str, typer.Option(help="A name, a .gguf file or a folder.")] = DEFAULT_MODEL,
    llama_folder: Annotated[
        Path | None, typer.Option("--llama", help="Folder of llama.cpp's programs.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="A minute instead of a quarter of an hour.")] = False,
    output: Annotated[Path | None, typer.Option(help="Where the JSON goes.")] = None,
) -> None:
    """Measure every precision against float32; print a table; write JSON."""
    path = resolve_model(model)
    texts = load_texts(path)
    texts = Texts(
        windows=texts.windows[: _QUICK_WINDOWS if quick else None],
        prompts=texts.prompts[: _QUICK_DIALOGUES if quick else _DIALOGUES],
        stop_ids=texts.stop_ids,
    )
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(path, texts, Path(folder) / "base.bin")
        rows = [_told(bench.reference())]
        rows += [_told(bench.measured(one)) for one in PRECISIONS]
        rows += [_told(bench.peer(llama_folder))] if llama_folder else []
    _show(rows, texts)
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H%M%SZ")
    target = output or _RESULTS / f"quality-{stamp}{'-quick' if quick else ''}.json"
    _store(target, path, rows, texts)
    print(f"Written to {target}")


def _told(row: Row) -> Row:
    """Show a row as soon as it is there: a run takes minutes."""
    print(row, flush=True)
    return row


def _positions(texts: Texts) -> int:
    return len(texts.windows) * (WINDOW // 2 - 1)


def _show(rows: list[Row], texts: Texts) -> None:
    table = Table(
        "precision", "KL, 1e-3", "top-1 %", "perplexity", "equal replies %", "common prefix",
        title=f"Against float32: {_positions(texts)} positions, {len(texts.prompts)} replies",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row.name,
            f"{row.quality.divergence * 1e3:.3f} ± {row.quality.divergence_error * 1e3:.3f}",
            f"{row.quality.same_top:.2%}",
            f"{row.quality.perplexity:.4f}",
            f"{row.agreement.equal:.0%}",
            f"{row.agreement.mean_prefix:.1f}",
        )
    Console().print(table)


def _store(path: Path, model: Path, rows: list[Row], texts: Texts) -> None:
    result: dict[str, Any] = {
        "command": " ".join(["python -m benchmarks.quality", *sys.argv[1:]]),
        "machine": describe_machine(),
        "model": model.name,
        "positions": _positions(texts),
        "replies": len(texts.prompts),
        "reply_tokens": _REPLY_TOKENS,
        "rows": [asdict(row) for row in rows],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
