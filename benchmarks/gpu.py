"""A CUDA machine's figures in one run: `python -m benchmarks.gpu`.

`--device cpu --shape tiny` runs the same on any machine. It needs no model, no network and no
compiler beyond what Triton brings: weights are drawn on the device. For each attention backend
that the device offers (or `--attention-backend`):

1. Checks on a tiny model in each dtype: logits against float32 on the CPU, tokens on pages, in
   chunks and from the host tier against those of the whole text in one step, and the auditor.
   Tolerances: `benchmarks.device.checks`.
2. Measures on the model of `--shape`, beside what the card can do at most, measured just before
   (a copy, a matrix product, a copy from and to pinned memory): decode, prefill, Python's part of
   a step, swapping, a long session that is resumed, the release of its blocks.
3. Goals, met or missed.

The exit code is 1 where a check failed, blocks leaked or something broke, not where a goal was
missed.
"""

import importlib.util
import json
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.device.bench_engine import backend_names, with_backend
from benchmarks.device.ceilings import Ceilings, measure_ceilings
from benchmarks.device.checks import Check, check_backend
from benchmarks.device.clock import DeviceClock
from benchmarks.device.measures import BATCHES, Goal, Measures, Row
from benchmarks.device.shapes import Shape, ShapeName, shape_of
from benchmarks.machine import describe_machine
from engine.config import Device, Dtype, EngineConfig, KvDtype
from engine.errors import EngineError
from engine.model.attention.registry import declarations
from engine.model.resolve import dtype_name
from engine.model.runner import prepare_model

_OPTIONAL = ("triton", "flash_attn", "flash_attn_interface")
_ONLY_BACKEND = "torch"  # where there is no choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Of one backend. `refused`: why it can't serve here; else empty."""

    backend: str
    refused: str = ""
    checks: Sequence[Check] = ()
    rows: Sequence[Row] = ()
    goals: Sequence[Goal] = ()
    faults: Sequence[str] = ()

    @property
    def is_sound(self) -> bool:
        """Whether all checks passed and nothing leaked."""
        return not self.faults and all(check.passed for check in self.checks)


def run_backend(
    name: str, config: EngineConfig, shape: Shape, ceilings: Ceilings, *, seed: int
) -> Result:
    """Check one backend in each dtype, then measure it in the one that is asked for.

    A backend whose checks fail is not measured: how fast it is wrong is of no interest.
    """
    config = with_backend(config, name)
    try:
        checks = [
            msgspec.structs.replace(config, dtype=dtype, kv_cache_dtype="auto")
            for dtype in _dtypes(config)
        ]
        if config.kv_cache_dtype != "auto":
            checks.append(config)
        found = [check for one in checks for check in _named(one, check_backend(one, seed))]
        if not all(check.passed for check in found):
            return Result(backend=name, checks=found)
        loaded = prepare_model(shape.spec, config)
        measures = Measures(config, loaded, shape, ceilings)
        measures.decode(DeviceClock(torch.device(loaded.device)))
        measures.prefill()
        measures.resume()
        measures.reclaim()
    except (EngineError, ImportError) as error:
        return Result(backend=name, refused=" ".join(str(error).split()))
    except Exception as error:  # a kernel that can't be launched: others are measured all the same
        traceback.print_exc()
        fault = " ".join(f"{type(error).__name__}: {error}".split())
        return Result(backend=name, faults=[fault])
    return Result(
        backend=name,
        checks=found,
        rows=measures.rows,
        goals=measures.goals,
        faults=measures.faults,
    )


def _dtypes(config: EngineConfig) -> Sequence[Dtype]:
    """The type that is asked for, else all that the backend computes in."""
    if config.dtype != "auto":
        return [config.dtype]
    mine = [each for each in declarations() if each.name == config.attention_backend]
    every: tuple[Dtype, ...] = ("float32", "bfloat16", "float16")
    return [dtype for dtype in every if any(dtype in each.dtypes for each in mine)]


def _named(config: EngineConfig, checks: Sequence[Check]) -> list[Check]:
    kv = "" if config.kv_cache_dtype == "auto" else f", KV {config.kv_cache_dtype}"
    return [replace(check, name=f"{config.dtype}{kv}: {check.name}") for check in checks]


def missing_packages() -> list[str]:
    """Packages that some backends want and that are not here."""
    return [name for name in _OPTIONAL if importlib.util.find_spec(name) is None]


def tables(result: Result) -> list[Table]:
    """What is printed of one backend."""
    checks = Table("check", "found", "allowed", "", title=f"{result.backend}: checks")
    for check in result.checks:
        verdict = "pass" if check.passed else "FAIL"
        checks.add_row(check.name, f"{check.found:.3g}", f"{check.allowed:.3g}", verdict)
    rows = Table("", "value", "the card's", "part", "unit", "", title=f"{result.backend}: measures")
    for row in result.rows:
        most = "" if row.floor is None else f"{row.floor:,.1f}"
        part = "" if row.floor is None else f"{row.value / row.floor:.0%}"
        rows.add_row(row.name, f"{row.value:,.2f}", most, part, row.unit, row.note)
    goals = Table("goal", "value", "wanted", "", title=f"{result.backend}: goals")
    for goal in result.goals:
        wanted = f"{'at most' if goal.at_most else 'at least'} {goal.wanted:g}"
        goals.add_row(goal.name, f"{goal.value:.2f}", wanted, "met" if goal.met else "missed")
    return [checks, rows, goals]


def _tell(console: Console, result: Result) -> None:
    if result.refused:
        console.print(f"{result.backend} can't serve here: {result.refused}")
        return
    for table in tables(result):
        if table.row_count:
            console.print(table)
    for fault in result.faults:
        console.print(f"[bold]FAIL[/bold] {result.backend}: {fault}")


def _describe(device: torch.device) -> str:
    if device.type != "cuda":
        return describe_machine()
    properties = torch.cuda.get_device_properties(device)
    return (
        f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, "
        f"CUDA {torch.version.cuda}, torch {torch.__version__}"
    )


def main(  # noqa: PLR0913, PLR0917 -- one for each option
    shape: Annotated[ShapeName, typer.Option(help="Of the model that is measured.")] = "7b",
    device: Annotated[Device, typer.Option(help="Where it runs.")] = "auto",
    attention_backend: Annotated[
        list[str] | None, typer.Option(help="Only these, by name; may be repeated.")
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Of weights and activations.")] = "auto",
    kv_cache_dtype: Annotated[KvDtype, typer.Option(help="Of KV.")] = "auto",
    block_size: Annotated[
        int, typer.Option(min=1, help="Tokens of a page; flash-attn 2 wants 256.")
    ] = 16,
    cpu_threads: Annotated[int, typer.Option(min=0, help="Of torch; 0: its choice.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the checks' texts.")] = 0,
    output: Annotated[Path | None, typer.Option("--json", help="Where all figures go.")] = None,
) -> None:
    """Check, measure, print; exit with 1 where a check failed."""
    console = Console()
    started_s = time.perf_counter()
    sizes = shape_of(shape)
    config = EngineConfig(
        model=sizes.spec.name,
        device=device,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        block_size=block_size,
        cpu_threads=cpu_threads,
        max_num_seqs=max(BATCHES),
        max_num_batched_tokens=sizes.step,
        num_speculative_tokens=0,
        target_inter_token_ms=0.0,
        idle_prefill=False,
    )
    if cpu_threads:
        torch.set_num_threads(cpu_threads)
    is_cuda = device != "cpu" and torch.cuda.is_available()
    place = torch.device("cuda" if is_cuda else "cpu")
    automatic = "bfloat16" if is_cuda else "float32"
    machine = _describe(place)
    console.print(f"{machine}; model {sizes.spec.name}; seed {seed}")
    if missing := missing_packages():
        console.print(f"Not installed, so no backends of theirs: {', '.join(missing)}")
    kind: torch.dtype = getattr(torch, automatic if dtype == "auto" else dtype)
    ceilings = measure_ceilings(DeviceClock(place), kind)
    console.print(
        f"The card: memory {ceilings.memory / 1e9:,.0f} GB/s; {dtype_name(kind)} matrices "
        f"{ceilings.matrix / 1e12:,.2f} TFLOP/s; to the host {ceilings.out / 1e9:,.1f}, "
        f"from it {ceilings.back / 1e9:,.1f} GB/s"
    )
    names = backend_names() or (_ONLY_BACKEND,)
    if unknown := set(attention_backend or ()) - set(names):
        raise typer.BadParameter(
            f"must be among {', '.join(names)} (got {', '.join(sorted(unknown))})"
        )
    results = []
    for name in attention_backend or names:
        result = run_backend(name, config, sizes, ceilings, seed=seed)
        _tell(console, result)
        results.append(result)
        if output is not None:  # after each: a card may be lent for less time than all take
            figures: dict[str, Any] = {"machine": machine, "shape": shape}
            figures |= {"ceilings": asdict(ceilings), "results": [asdict(one) for one in results]}
            output.write_text(json.dumps(figures, indent=2) + "\n")
    console.print(f"{time.perf_counter() - started_s:.0f} s")
    if not all(result.is_sound for result in results):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
