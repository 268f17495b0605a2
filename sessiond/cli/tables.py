"""Formats tables and times for the list commands."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from engine.system.byte_size import format_bytes


def plain_table(*columns: str) -> Table:
    """Make a table without lines whose cells are never truncated."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def print_plain(shown: Table | str) -> None:
    """Print; without a terminal nothing is truncated, since scripts read the output."""
    console = Console(highlight=False)
    console.print(shown, soft_wrap=not console.is_terminal)


def kv_text(session: Mapping[str, Any]) -> str:
    """Format a session's KV bytes in its fastest tier: "4.0 MiB", "4.0 MiB disk"."""
    kv_bytes = session.get("kv_bytes") or {}
    tier = next((name for name in ("device", "host", "disk") if kv_bytes.get(name)), "device")
    size = format_bytes(int(kv_bytes.get(tier, 0)))
    return size if tier == "device" else f"{size} {tier}"


def ago(unix_s: float | None, now_s: float) -> str:
    """Format a time as an age in the largest unit that is at least one."""
    if unix_s is None:
        return ""
    ago_s = max(0, int(now_s - unix_s))
    for unit, seconds in (("d", 86400), ("h", 3600), ("min", 60)):
        if ago_s >= seconds:
            return f"{ago_s // seconds} {unit} ago"
    return f"{ago_s} s ago"
