"""`sessiond doctor`: audits a running server's memory and explains its growth."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from engine.files.catalog import models_folder
from sessiond.cli.ask_server import (
    DEFAULT_URL,
    JsonOption,
    KeyOption,
    UrlOption,
    print_json,
    server_at,
)
from sessiond.cli.doctor_words import show
from sessiond.cli.fail import FAILED
from sessiond.cli.server_api import ServerAddress, ServerApi
from sessiond.diagnosis.explanations import explain, rises
from sessiond.diagnosis.finding import Finding
from sessiond.diagnosis.leftovers import find_leftovers
from sessiond.diagnosis.memory_parts import MemoryPart
from sessiond.settings import Settings

OverOption = Annotated[
    float,
    typer.Option(
        "--over",
        min=0,
        max=86_400,
        help="Seconds between two samples, whose growth is shown (0 = one sample).",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The server's report and its explanations. `rises`: growth between samples, largest first."""

    report: dict[str, Any]
    findings: Sequence[Finding] = ()
    rises: Sequence[tuple[str, MemoryPart]] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether the memory accounting is consistent."""
        return bool(self.report.get("ok")) and not any(found.fault for found in self.findings)


def doctor(
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    over_s: OverOption = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Audit a server's memory, and explain its contents and growth.

    Exit code 1 unless every block is free, cached or in use with correct reference counts. Also
    finds leftovers of earlier servers if the server runs on this machine.
    """
    with server_at(url, api_key) as server:
        found = examine(server, over_s)
    if "engine" in found.report and ServerAddress.parse(url).is_loopback:
        found = _with_leftovers(found)
    if as_json:
        print_json(_as_json(found))
    else:
        show(Console(highlight=False), found.report, found.findings, found.rises)
    raise typer.Exit(0 if found.is_sound else FAILED)


def examine(server: ServerApi, over_s: float) -> Diagnosis:
    """Query the server once or twice; older versions report nothing to explain."""
    report = server.memory()
    if "engine" not in report:
        return Diagnosis(report=report)
    earlier = report
    if over_s:
        time.sleep(over_s)
        report = server.memory()
    return Diagnosis(
        report=report,
        findings=explain(report, server.capacity()),
        rises=rises(earlier, report) if over_s else [],
    )


def _with_leftovers(found: Diagnosis) -> Diagnosis:
    left = find_leftovers(
        found.report,
        tier_folder=Path(
            Settings.model_fields["disk_tier_path"].get_default(call_default_factory=True)
        ),
        models=models_folder(os.environ),
    )
    return Diagnosis(report=found.report, findings=[*found.findings, *left], rises=found.rises)


def _as_json(found: Diagnosis) -> Mapping[str, Any]:
    grown = [
        {"process": process, "part": part.name, "bytes": part.num_bytes}
        for process, part in found.rises
    ]
    return found.report | {
        "findings": [asdict(finding) for finding in found.findings],
        "rises": grown,
    }
