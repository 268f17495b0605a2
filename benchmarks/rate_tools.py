"""Raw rates without a server: this project's kernels and llama.cpp's own tools."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.peer_files import PeerFiles
from benchmarks.play import BATCHES, PREFILLS

RateTool = Callable[[], dict[str, float]]
_DECODE_CONTEXT, _DECODE_TOKENS = 256, 64
_TOOL_TIMEOUT_S = 600


def rate_tools(files: PeerFiles) -> Mapping[str, RateTool]:
    """What measures raw rates without a server, by the name of whose they are."""
    return {
        "sessiond-kernels": lambda: kernel_rates(files.q4_1),
        "llama-q4_1": lambda: llama_rates(files, files.q4_1),
        "llama-q4_0": lambda: llama_rates(files, files.q4_0),
    }


def kernel_rates(model: Path) -> dict[str, float]:
    """Tokens per second inside this project's engine: medians of `benchmarks.kernels`."""
    command = [sys.executable, "-m", "benchmarks.kernels", str(model), "--json", "--seconds", "3"]
    rates: dict[str, float] = json.loads(_output(command))
    return rates


def llama_rates(files: PeerFiles, model: Path) -> dict[str, float]:
    """Tokens per second inside llama.cpp, by its own tools."""
    common = ["--model", str(model), "--threads", "2"]
    prefills = [str(files.llama_tool("llama-bench")), *common, "-n", "0", "-r", "1", "--no-warmup"]
    prefills += ["-o", "json", "-p", ",".join(map(str, (64, *PREFILLS)))]  # the first warms up
    context = max(BATCHES) * (_DECODE_CONTEXT + _DECODE_TOKENS)
    decodes = [str(files.llama_tool("llama-batched-bench")), *common, "-c", str(context)]
    decodes += ["-npp", str(_DECODE_CONTEXT), "-ntg", str(_DECODE_TOKENS)]
    # one prompt, copied to each sequence: nothing but decoding is timed, and the run is shorter
    decodes += ["-npl", ",".join(map(str, BATCHES)), "-pps", "--output-format", "jsonl"]
    return read_llama_bench(_output(prefills)) | read_batched_bench(_output(decodes))


def read_llama_bench(text: str) -> dict[str, float]:
    """Rates out of the JSON of llama-bench."""
    rows = [row for row in json.loads(text) if row["n_prompt"] in PREFILLS]
    return {f"prefill_{row['n_prompt']}": float(row["avg_ts"]) for row in rows}


def read_batched_bench(text: str) -> dict[str, float]:
    """Rates out of the JSON lines of llama-batched-bench, which other lines surround."""
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {f"decode_{row['pl']}": float(row["speed_tg"]) for row in rows}


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(  # noqa: S603 -- our own commands
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=_TOOL_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {done.stderr[-1000:]}")
    return done.stdout
