"""`sessiond capacity`: ramps up load on a running server and reports its capacity."""

import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
import typer
from rich.console import Console

from sessiond.capacity.knee import find_knee
from sessiond.capacity.observations import ServerSeen, encode, read
from sessiond.capacity.page import LEGEND, check_lines, html_page, stage_table
from sessiond.capacity.picture import draw
from sessiond.capacity.report import Report, answer, check, ramp, users_around
from sessiond.capacity.stages import LoadStage, sum_up
from sessiond.cli.ask_server import DEFAULT_URL, JsonOption, KeyOption, UrlOption, server_at
from sessiond.cli.fail import FAILED, WRONG_USAGE, fail
from sessiond.cli.plots_extra import need_plots
from sessiond.cli.scrape import Sample, read_values
from sessiond.cli.server_api import ServerApi, ServerError

_SAMPLE_EVERY_S = 0.5
_GRACE_S = 120.0  # in addition to the stages: start, last turns, summary


def capacity(  # noqa: PLR0913, PLR0917 -- one per flag
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    users: Annotated[int, typer.Option(min=1, help="Number of users in the last stage.")] = 32,
    stages: Annotated[int, typer.Option(min=2, help="Number of stages.")] = 8,
    stage_s: Annotated[
        float, typer.Option(min=1, max=86_400, help="Duration of a stage in seconds.")
    ] = 30.0,
    time_scale: Annotated[
        float,
        typer.Option(
            min=0, max=100, help="Factor for recorded think times, whose median is 2 minutes."
        ),
    ] = 0.05,
    max_output_tokens: Annotated[
        int, typer.Option(min=1, help="Maximum reply length in tokens.")
    ] = 64,
    for_users: Annotated[
        int | None,
        typer.Option(
            min=1, show_default=False, help="Number of users for which the instances are computed."
        ),
    ] = None,
    ttft_limit_ms: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=3_600_000,
            show_default=False,
            help="Limit of the 95th percentile of warm TTFT in milliseconds.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("capacity"),
    check_report: Annotated[
        Path | None,
        typer.Option(
            "--check",
            show_default=False,
            help="report.json of an earlier run. The load is 80 % and 120 % of its knee, and "
            "the results are compared with its curves.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Ramp up load, find the knee, plot, size a fleet. Needs the extras `loadtest`, `plots`.

    Simulated users send texts of real dialogues, with think times and reply lengths of a real
    trace. Shed turns are retried; lost conversations are counted.
    """
    report = None if check_report is None else _read_report(check_report)
    if report is None:
        need_plots("capacity")
    steps = ramp(users, stages) if report is None else users_around(report.knee)
    console = Console(highlight=False, stderr=as_json)
    out.mkdir(parents=True, exist_ok=True)
    with server_at(url, api_key) as server:
        model = server.model()
        load = _Load(url, api_key, out, time_scale, max_output_tokens)
        found = load.run(server, steps, stage_s, console)
    console.print(stage_table(found))
    console.print(LEGEND, style="dim")
    if report is not None:
        checks = check(report, found)
        (out / "check.json").write_bytes(_pretty(checks))
        console.print("\n".join(check_lines(checks)), soft_wrap=True)
        raise typer.Exit(0 if all(one.holds for one in checks) else FAILED)
    limit_s = None if ttft_limit_ms is None else ttft_limit_ms / 1000
    report = Report(
        model=model,
        load=f"think times × {time_scale:g}, replies up to {max_output_tokens} tokens",
        stages=found,
        knee=find_knee(found, limit_s),
    )
    _write(report, out, for_users)
    console.print("\n".join(answer(report, for_users)), soft_wrap=True)
    console.print(f"report: {out / 'report.html'}", soft_wrap=True, markup=False)
    if as_json:
        typer.echo(msgspec.json.encode(report))


def _read_report(path: Path) -> Report:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except (OSError, msgspec.MsgspecError) as error:
        fail(f"--check must be a report.json of this command (got {path}: {error})", WRONG_USAGE)


def _write(report: Report, out: Path, users: int | None) -> None:
    picture = draw(report)
    (out / "report.json").write_bytes(_pretty(report))
    (out / "curves.png").write_bytes(picture)
    (out / "report.html").write_text(html_page(report, picture, users), encoding="utf-8")


def _pretty(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


class _Load:
    """Runs the load test in its own process and samples the server during the run."""

    def __init__(
        self, url: str, api_key: str | None, out: Path, time_scale: float, max_output_tokens: int
    ) -> None:
        self._url = url
        self._environment = {} if api_key is None else {"SESSIOND_API_KEY": api_key}
        self._out = out
        self._options = {
            "--time-scale": str(time_scale),
            "--max-output-tokens": str(max_output_tokens),
        }

    def run(
        self, server: ServerApi, users: Sequence[int], stage_s: float, console: Console
    ) -> list[LoadStage]:
        """Run `users[i]` users for `stage_s` seconds each, then summarise the stages."""
        turns, samples = self._out / "turns.jsonl", self._out / "server.jsonl"
        stages = ",".join(f"{count}:{stage_s:g}" for count in users)
        console.print(f"users {', '.join(map(str, users))}, {stage_s:g} s each", style="dim")
        with _Watch(server, samples):
            self._locust(stages, turns, len(users) * stage_s + _GRACE_S)
        return sum_up(sorted([*read(turns), *read(samples)], key=lambda seen: seen.at_s))

    def _locust(self, stages: str, record: Path, timeout_s: float) -> None:
        options = [word for pair in self._options.items() for word in pair]
        command = [
            *(sys.executable, "-m", "locust", "-f", str(_locustfile())),
            *("--headless", "--only-summary", "--host", self._url, "--exit-code-on-error", "0"),
            *("--stages", stages, "--record", str(record), "--most-lost", "1000000"),
            *("--most-failed", "1", *options),
        ]
        ran = subprocess.run(  # noqa: S603 -- our own module
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            env=os.environ | self._environment,
        )
        if ran.returncode or not record.exists():
            fail(f"the load test ended with code {ran.returncode}:\n{ran.stderr[-2000:]}")


def _locustfile() -> Path:
    """Return the path of the load test.

    Raises:
        typer.Exit: the extra is not installed.
    """
    missing = [name for name in ("locust", "websocket") if importlib.util.find_spec(name) is None]
    found = importlib.util.find_spec("loadtest")
    if missing or found is None or not found.submodule_search_locations:
        fail("sessiond capacity needs the extra `loadtest`: pip install 'sessiond[loadtest]'")
    return Path(found.submodule_search_locations[0]) / "locustfile.py"


class _Watch:
    """Samples the server twice a second during the load and records the samples."""

    def __init__(self, server: ServerApi, path: Path) -> None:
        self._server = server
        self._path = path
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with self._path.open("wb") as file:
            while not self._over.wait(_SAMPLE_EVERY_S):
                try:
                    file.write(encode(_sample(self._server)))
                except ServerError:
                    continue  # a server too busy to answer also shows in the users' turns


def _sample(server: ServerApi) -> ServerSeen:
    capacity: dict[str, Any] = server.capacity()
    sample = Sample(
        at_s=time.time(), values=read_values(server.metrics()), capacity=capacity, sessions=()
    )
    return ServerSeen(
        at_s=sample.at_s,
        total_blocks=capacity["total_blocks"],
        active_blocks=capacity["active_blocks"],
        running=capacity["running"],
        waiting=capacity["waiting"],
        block_bytes=capacity["block_size"] * capacity["kv_bytes_per_token"],
        evictions_total=sample.total("sessiond_evictions_total"),
        preemptions_total=sample.total("sessiond_preemptions_total"),
    )
