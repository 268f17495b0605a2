"""`sessiond doctor`: asks a running server whether its memory adds up."""

import typer
from rich.console import Console
from rich.table import Table

from engine.byte_size import format_bytes
from sessiond.cli.ask_server import (
    DEFAULT_URL,
    JsonOption,
    KeyOption,
    UrlOption,
    print_json,
    server_at,
)
from sessiond.cli.fail import FAILED


def doctor(
    url: UrlOption = DEFAULT_URL, api_key: KeyOption = None, as_json: JsonOption = False
) -> None:
    """Audit a server's memory: every block is free, cached or in use, and counted right.

    Exit code 1 if it is not. Says what arithmetic runs, too.
    """
    with server_at(url, api_key) as server:
        report = server.memory()
    sound = bool(report.get("ok"))
    if as_json:
        print_json(report)
    else:
        _show(report, sound)
    raise typer.Exit(0 if sound else FAILED)


def _show(report: dict[str, object], sound: bool) -> None:
    console = Console(highlight=False)
    verdict = "[green]the memory adds up[/]" if sound else "[red]the memory does not add up[/]"
    console.print(verdict)
    violations = report.get("violations")
    for violation in violations if isinstance(violations, list) else []:
        console.print(f"  {violation}", markup=False)
    if "arithmetic" in report:
        console.print(str(report["arithmetic"]), markup=False)
    tiers = report.get("tiers")
    for tier in tiers if isinstance(tiers, list) else []:
        console.print(_tier_line(tier), markup=False, soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    for name, value in report.items():
        if isinstance(value, int) and not isinstance(value, bool):
            shown = format_bytes(value) if name.endswith("_bytes") else str(value)
            table.add_row(name.removesuffix("_bytes").replace("_", " "), shown)
    console.print(table)


def _tier_line(tier: dict[str, object]) -> str:
    name, size = tier["name"], format_bytes(int(str(tier["bytes"])))
    if "reason" in tier:
        return f"no {name} tier of {size}: {tier['reason']}"
    write = int(str(tier["write_bytes_per_s"]))
    written = f"written at {format_bytes(write)}/s" if write else "full, so writing isn't measured"
    read = format_bytes(int(str(tier["read_bytes_per_s"])))
    return f"{name} tier of {size}: {tier['blocks']} blocks, read at {read}/s, {written}"
