"""Output of `sessiond doctor`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from engine.system.byte_size import format_bytes
from sessiond.diagnosis.finding import Finding
from sessiond.diagnosis.memory_parts import MemoryPart, engine_parts, gateway_parts


def show(
    console: Console,
    report: Mapping[str, Any],
    findings: Sequence[Finding],
    rises: Iterable[tuple[str, MemoryPart]],
) -> None:
    """Print the verdict, the explanations, and the numbers."""
    sound = bool(report.get("ok"))
    verdict = (
        "[green]memory accounting is consistent[/]"
        if sound
        else "[red]memory accounting is inconsistent[/]"
    )
    console.print(verdict)
    for violation in report.get("violations", ()):
        console.print(f"  {violation}", markup=False)
    if "arithmetic" in report:
        console.print(str(report["arithmetic"]), markup=False)
    if report.get("attention_reason"):
        console.print(f"attention: {report['attention_reason']}", markup=False, soft_wrap=True)
    for tier in report.get("tiers", ()):
        console.print(_tier_line(tier), markup=False, soft_wrap=True)
    console.print(_numbers(report))
    if "engine" in report:
        _show_parts(console, report)
    _show_rises(console, rises)
    for number, finding in enumerate(findings, 1):
        _show_finding(console, number, finding)


def _numbers(report: Mapping[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in report.items():
        if isinstance(value, int) and not isinstance(value, bool):
            shown = format_bytes(value) if name.endswith("_bytes") else str(value)
            table.add_row(name.removesuffix("_bytes").replace("_", " "), shown)
    return table


def _show_parts(console: Console, report: Mapping[str, Any]) -> None:
    for name, parts in (("engine", engine_parts(report)), ("gateway", gateway_parts(report))):
        process = report[name]
        counted = [f"{process['files']} files", f"{process['threads']} threads"]
        if name == "gateway":
            counted += [f"{process[key]} {key}" for key in ("sockets", "tasks", "turns")]
        console.print()
        console.print(
            f"{name} (process {process['pid']}): {format_bytes(process['rss_bytes'])} resident, "
            f"{', '.join(counted)}",
            markup=False,
        )
        table = Table.grid(padding=(0, 2))
        table.add_column()
        table.add_column(justify="right")
        for part in parts:
            if part.num_bytes:
                table.add_row(f"  {part.name}", format_bytes(part.num_bytes))
        console.print(table)


def _show_rises(console: Console, rises: Iterable[tuple[str, MemoryPart]]) -> None:
    grown = [(name, part) for name, part in rises if part.num_bytes > 0]
    for name, part in grown:
        text = f"growth: {name}, {part.name}: {format_bytes(part.num_bytes)}"
        console.print(text, markup=False)


def _show_finding(console: Console, number: int, finding: Finding) -> None:
    console.print()
    title = Text(f"{number}. {finding.code.replace('_', ' ')}: {finding.what}")
    title.stylize("bold red" if finding.fault else "bold")
    console.print(title)
    for word, text in (("means", finding.means), ("do", finding.do)):
        console.print(Padding(Text(f"{word}: {text}"), (0, 0, 0, 3)))


def _tier_line(tier: Mapping[str, Any]) -> str:
    name, size = tier["name"], format_bytes(int(str(tier["bytes"])))
    if "reason" in tier:
        return f"no {name} tier of {size}: {tier['reason']}"
    write = int(str(tier["write_bytes_per_s"]))
    written = f"written at {format_bytes(write)}/s" if write else "full, so writing isn't measured"
    read = format_bytes(int(str(tier["read_bytes_per_s"])))
    return f"{name} tier of {size}: {tier['blocks']} blocks, read at {read}/s, {written}"
