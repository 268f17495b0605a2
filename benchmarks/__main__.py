"""`make bench`: this server beside its peers, and kept KV beside recomputed; prints ratios."""

import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.contest import Contest, Run
from benchmarks.contestants import contestants
from benchmarks.kept import FULL, QUICK, measure_kept
from benchmarks.peer_files import PeerFiles, PeerKind
from benchmarks.rate_tools import rate_tools
from benchmarks.report import Results, show, store
from benchmarks.schedule import KEPT, OURS, PARTS, PEERS, Play, schedule
from engine.files.catalog import DEFAULT_MODEL, resolve_model

_RESULTS = Path(__file__).parent / "results"


_QUICK_PLAYS = [Play(0, "quick", "sessiond")]


def main(  # noqa: PLR0913 -- one parameter per option of the command line
    *,
    quick: Annotated[
        bool, typer.Option(help="A look at this server alone, in half a minute.")
    ] = False,
    repeat: Annotated[int, typer.Option(min=1, help="Repetitions.")] = 3,
    thorough: Annotated[
        bool, typer.Option(help="Play what takes long in every repetition too.")
    ] = False,
    only: Annotated[str, typer.Option(help=f"Some of {','.join(PARTS)}.")] = ",".join(PARTS),
    peers: Annotated[str, typer.Option(help=f"Some of {','.join(PEERS)}.")] = ",".join(PEERS),
    output: Annotated[Path | None, typer.Option(help="Where the JSON goes.")] = None,
) -> None:
    """Play the workloads of docs/benchmarks.md on each server in turn; print medians and ratios."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped
    parts = _chosen("--only", only, PARTS)
    wanted = [] if quick else _chosen("--peers", peers, PEERS)
    resolve_model(DEFAULT_MODEL)
    skipped = _not_installed(wanted)
    for name, reason in skipped.items():
        _tell(f"{name} is skipped: {reason}")
    servers = [name for name in (*OURS, *wanted) if name not in skipped]
    plays = _QUICK_PLAYS if quick else schedule(repeat, parts, servers, thorough=thorough)
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H%M%SZ")
    path = output or _RESULTS / f"{stamp}{'-quick' if quick else ''}.json"
    command = " ".join(["python -m benchmarks", *sys.argv[1:]])

    def note(line: str, runs: Sequence[Run]) -> None:
        _tell(line)
        store(path, command, Results(runs=runs, skipped=skipped))  # an end before its time

    with tempfile.TemporaryDirectory() as name:
        runs = _contest(Path(name), plays, note)
        kept = measure_kept(Path(name), QUICK if quick else FULL) if KEPT in parts else ([], [])
    results = Results(runs=runs, ttft=kept[0], decode=kept[1], skipped=skipped)
    show(results)
    store(path, command, results)
    print(f"Written to {path}")


def _chosen(option: str, text: str, allowed: Sequence[str]) -> list[str]:
    """The words of an option, in their order among `allowed`."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in allowed:
            raise typer.BadParameter(f"{option} must be among {', '.join(allowed)} (got {word})")
    return [word for word in allowed if word in words]


def _not_installed(peers: Sequence[str]) -> dict[str, str]:
    files = PeerFiles.of_user()
    skipped: dict[str, str] = {}
    for name in peers:
        kind: PeerKind = "llama" if name.startswith("llama") else "vllm"
        if files.missing(kind):
            skipped[name] = f"not installed; `python -m benchmarks.peers install {kind}` does it"
    return skipped


def _contest(
    folder: Path, plays: list[Play], note: Callable[[str, Sequence[Run]], None]
) -> list[Run]:
    files = PeerFiles.of_user()
    with contestants(files, folder) as servers:
        return Contest(servers, rate_tools(files), note).run(plays)


def _tell(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    typer.run(main)
