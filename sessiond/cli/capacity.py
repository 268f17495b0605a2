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

from engine.simulation.trace import TraceError, read_trace
from sessiond.capacity.knee import find_knee, find_longest
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
_REPLY_TOKENS = 64
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
        int | None,
        typer.Option(
            min=1,
            show_default="64; with --trace that of its longest reply",
            help="Maximum reply length in tokens.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            show_default=False,
            help="Trace of your own (docs/traces.md): its lengths and think times are used "
            "instead of the recorded ones.",
        ),
    ] = None,
    length_ramp: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default=False,
            help="Ramp up the length of conversations to this many tokens instead of the number "
            "of users.",
        ),
    ] = None,
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
    if length_ramp is not None and (for_users is not None or check_report is not None):
        fail(
            "--for-users and --check need a ramp of users: --length-ramp must be absent",
            WRONG_USAGE,
        )
    report = None if check_report is None else _read_report(check_report)
    if report is None:
        need_plots("capacity")
    steps = _steps(users, stages, length_ramp)
    if report is not None:
        steps = [(count, 0) for count in users_around(report.knee)]
    reply_tokens = max_output_tokens or _longest_reply(trace)
    console = Console(highlight=False, stderr=as_json)
    out.mkdir(parents=True, exist_ok=True)
    with server_at(url, api_key) as server:
        model = server.model()
        load = _Load(url, api_key, out, time_scale, reply_tokens, trace)
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
        load=_describe(trace, time_scale, reply_tokens),
        stages=found,
        knee=(find_knee if length_ramp is None else find_longest)(found, limit_s),
    )
    _write(report, out, for_users)
    console.print("\n".join(answer(report, for_users)), soft_wrap=True)
    console.print(f"report: {out / 'report.html'}", soft_wrap=True, markup=False)
    if as_json:
        typer.echo(msgspec.json.encode(report))


def _steps(users: int, stages: int, longest: int | None) -> list[tuple[int, int]]:
    """Users and tokens of each stage."""
    if longest is None:
        return [(count, 0) for count in ramp(users, stages)]
    return [(users, tokens) for tokens in ramp(longest, stages)]


def _longest_reply(trace: Path | None) -> int:
    if trace is None:
        return _REPLY_TOKENS
    try:
        return max(1, *(request.reply_tokens for request in read_trace(trace).requests))
    except TraceError as error:
        fail(str(error), WRONG_USAGE)


def _describe(trace: Path | None, time_scale: float, reply_tokens: int) -> str:
    name = "" if trace is None else f"sessions of {trace.name}, "
    return f"{name}think times × {time_scale:g}, replies up to {reply_tokens} tokens"


def _read_report(path: Path) -> Report:
    try:
        report = msgspec.json.decode(path.read_bytes(), type=Report)
    except (OSError, msgspec.MsgspecError) as error:
        fail(f"--check must be a report.json of this command (got {path}: {error})", WRONG_USAGE)
    if report.knee.length_tokens is not None:
        fail(f"--check must be a report of a ramp of users (got lengths: {path})", WRONG_USAGE)
    return report


def _write(report: Report, out: Path, users: int | None) -> None:
    picture = draw(report)
    (out / "report.json").write_bytes(_pretty(report))
    (out / "curves.png").write_bytes(picture)
    (out / "report.html").write_text(html_page(report, picture, users), encoding="utf-8")


def _pretty(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


class _Load:
    """Runs the load test in its own process and samples the server during the run."""

    def __init__(  # noqa: PLR0913, PLR0917 -- the command's options
        self,
        url: str,
        api_key: str | None,
        out: Path,
        time_scale: float,
        max_output_tokens: int,
        trace: Path | None,
    ) -> None:
        self._url = url
        self._environment = {} if api_key is None else {"SESSIOND_API_KEY": api_key}
        self._out = out
        self._options = {
            "--time-scale": str(time_scale),
            "--max-output-tokens": str(max_output_tokens),
            "--trace": "" if trace is None else str(trace),
        }

    def run(
        self,
        server: ServerApi,
        steps: Sequence[tuple[int, int]],
        stage_s: float,
        console: Console,
    ) -> list[LoadStage]:
        """Run stages of `stage_s` seconds, each a number of users and a length, and sum them up."""
        turns, samples = self._out / "turns.jsonl", self._out / "server.jsonl"
        stages = ",".join(f"{count}:{stage_s:g}:{tokens}" for count, tokens in steps)
        names = [f"{count}{f' × {tokens} tokens' * bool(tokens)}" for count, tokens in steps]
        console.print(f"users {', '.join(names)}, {stage_s:g} s each", style="dim")
        with _Watch(server, samples):
            self._locust(stages, turns, len(steps) * stage_s + _GRACE_S)
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
