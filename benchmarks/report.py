"""Shows and stores results."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.decode import DecodeRow
from benchmarks.machine import describe_machine
from benchmarks.ttft import TtftRow


def show(ttft: Sequence[TtftRow], decode: Sequence[DecodeRow]) -> None:
    """Print the tables."""
    console = Console()
    console.print(describe_machine())
    if ttft:
        table = Table(
            "history tokens", "new", "KV kept ms", "recomputed ms", "ratio", "reused",
            title="Time to first token, median",
        )  # fmt: skip
        for row in ttft:
            table.add_row(
                str(row.history_tokens),
                str(row.new_tokens),
                f"{row.kept_ms:.0f}",
                f"{row.recomputed_ms:.0f}",
                f"{row.ratio:.1f}x",
                str(row.kept_cached_tokens),
            )
        console.print(table)
    if decode:
        table = Table(
            "sessions", "tokens/s all", "tokens/s each", "ratio to one", title="Decode, KV kept"
        )
        for one in decode:
            table.add_row(
                str(one.sessions),
                f"{one.tokens_per_s:.1f}",
                f"{one.tokens_per_s_each:.1f}",
                f"{one.tokens_per_s / decode[0].tokens_per_s:.1f}x",
            )
        console.print(table)


def store(
    path: Path, command: str, ttft: Sequence[TtftRow], decode: Sequence[DecodeRow]
) -> dict[str, Any]:
    """Write the results as JSON. Returns what was written."""
    result = {
        "command": command,
        "machine": describe_machine(),
        "python": platform.python_version(),
        "ttft": [asdict(row) | {"ratio": row.ratio} for row in ttft],
        "decode": [asdict(row) for row in decode],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    return result
