"""Rates of the native kernels: `python -m benchmarks.kernels MODEL`. No server, no gateway.

Decode: one step of 1, 8 and 32 sequences at a context of 256 (--context) tokens, through
`NativeRunner.execute`. Prefill: 512 and 4,096 tokens in chunks of 512. Prints the rate of the
fastest and of the median repeat, the share of time outside the C library, and the share of each
phase of a step. Other processes on the machine show up in the median first. All of that
goes to standard error; with --json standard output is an object of the median rates.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from engine.config import EngineConfig
from engine.files.spec_reader import read_spec
from engine.ids import BlockId
from engine.ipc.messages import Sampling
from engine.kv.page_table import PageEntry
from engine.kv.step import SampleAt, SequenceStep
from engine.model.native import NativeRunner, prepare_native_model

BLOCK = 16
GREEDY = SampleAt(sampling=Sampling(temperature=0.0), output_index=0)


def entries(blocks: list[int], length: int) -> tuple[PageEntry, ...]:
    """Page table of `length` tokens from position 0."""
    return tuple(
        PageEntry(BlockId(block), 0, min(BLOCK, length - base) - 1, base)
        for block, base in zip(blocks, range(0, length, BLOCK), strict=False)
    )


def decode_step(batch: int, context: int, order: list[int]) -> list[SequenceStep]:
    """One new token each for `batch` sequences in blocks scattered over the pool."""
    per = -(-context // BLOCK)
    return [
        SequenceStep(
            token_ids=[1000 + index],
            first_position=context - 1,
            entries=entries(order[index * per : (index + 1) * per], context),
            sample=GREEDY,
        )
        for index in range(batch)
    ]


def prefill_steps(length: int, chunk: int, order: list[int]) -> list[list[SequenceStep]]:
    """The steps that compute one sequence, chunk by chunk."""
    ids = [17 * index % 40_000 for index in range(length)]
    return [
        [
            SequenceStep(
                token_ids=ids[start : start + chunk],
                first_position=start,
                entries=entries(order, min(start + chunk, length)),
                sample=GREEDY if start + chunk >= length else None,
            )
        ]
        for start in range(0, length, chunk)
    ]


def fill(runner: NativeRunner, num_blocks: int) -> None:
    """Put KV of a text into every block: reading memory never written costs nothing."""
    blocks = list(range(min(num_blocks, 256 // BLOCK)))
    for (step,) in prefill_steps(len(blocks) * BLOCK, 256, blocks):
        runner.execute([step])
    for block in range(len(blocks), num_blocks):
        runner.copy_block(BlockId(block % len(blocks)), BlockId(block))


def measure(runner: NativeRunner, steps: list[list[SequenceStep]], seconds: float) -> list[float]:
    """Seconds of each repeat of all steps."""
    times: list[float] = []
    runner.profile()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        for step in steps:
            runner.execute(step)
        times.append(time.perf_counter() - start)
    return times


def report(name: str, tokens: int, times: list[float], phases: dict[str, float]) -> None:
    """Print one line of rates and one of phases, to standard error."""
    inside = sum(phases.values())
    outside = 100 * (1 - inside / sum(times))
    print(
        f"{name:>14}: {tokens / min(times):7.0f} tok/s best, "
        f"{tokens / statistics.median(times):7.0f} median, {outside:4.1f} % outside the kernels",
        file=sys.stderr,
    )
    shares = ", ".join(f"{phase} {100 * part / inside:.0f}" for phase, part in phases.items())
    print(f"{'':>16}% of the step: {shares}", file=sys.stderr)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--prefills", type=int, nargs="*", default=[512, 4096])
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--weights", default="native")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    config = EngineConfig(
        model=str(arguments.model),
        dtype=arguments.dtype,
        weights=arguments.weights,
        kv_cache_dtype=arguments.kv_cache_dtype,
    )
    start = time.perf_counter()
    model = prepare_native_model(read_spec(arguments.model), config, threads=arguments.threads)
    print(
        f"{model.attention}, {model.threads} threads, weights {'+'.join(model.formats)} "
        f"{model.weights_bytes / 1e6:.1f} MB, KV {model.kv_dtype}, "
        f"loaded in {time.perf_counter() - start:.1f} s",
        file=sys.stderr,
    )
    per = -(-arguments.context // BLOCK)
    longest = max([-(-length // BLOCK) for length in arguments.prefills], default=0)
    num_blocks = max(longest, per * max(arguments.batches, default=0))
    runner = model.runner(num_blocks)
    fill(runner, num_blocks)
    order = np.random.default_rng(0).permutation(num_blocks).tolist()
    rates: dict[str, float] = {}
    for batch in arguments.batches:
        steps = [decode_step(batch, arguments.context, order)]
        times = measure(runner, steps, arguments.seconds)
        report(f"decode {batch}", batch, times, runner.profile())
        rates[f"decode_{batch}"] = batch / statistics.median(times)
    for length in arguments.prefills:
        times = measure(runner, prefill_steps(length, 512, order), arguments.seconds)
        report(f"prefill {length}", length, times, runner.profile())
        rates[f"prefill_{length}"] = length / statistics.median(times)
    if arguments.json:
        print(json.dumps(rates))


if __name__ == "__main__":
    main()
