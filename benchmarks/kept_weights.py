"""What it costs on the torch path to keep a GGUF's weights quantised: time of a step, and bytes.

    python -m benchmarks.kept_weights [--model PATH] [--tokens 128] [--runs 5] [--device cpu|cuda]

Prints, of weights dequantised at load and of kept ones, the bytes that they take and the median
time of a step with one new token and of one with `--tokens`, in the same process and by turns.
"""

import argparse
import time
from statistics import median

from engine.config import EngineConfig
from engine.files.catalog import DEFAULT_MODEL, resolve_model
from engine.files.spec_reader import read_spec
from engine.ids import BlockId
from engine.ipc.messages import Sampling
from engine.kv.page_table import PageEntry
from engine.kv.step import SampleAt, SequenceStep
from engine.model.runner import TorchRunner, prepare_model

_BLOCK = 16


def main() -> None:
    """Measure, and print a line for each way to keep the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    wanted = parser.parse_args()
    spec = read_spec(resolve_model(wanted.model, print))
    runners: dict[str, TorchRunner] = {}
    for weights in ("dequantized", "native"):
        config = EngineConfig(
            model=wanted.model,
            device=wanted.device,
            dtype=wanted.dtype,
            weights=weights,
            attention_backend="torch",
        )
        model = prepare_model(spec, config)
        runners[weights] = model.runner(wanted.tokens // _BLOCK + 2)
        print(f"{weights}: {model.weights}, {model.weights_bytes / 2**20:.1f} MiB")
    took: dict[tuple[str, int], list[float]] = {}
    for run in range(wanted.runs + 1):
        for weights, runner in runners.items():
            for tokens in (1, wanted.tokens):
                seconds = _step_time(runner, tokens)
                if run:  # the first warms up
                    took.setdefault((weights, tokens), []).append(seconds)
    for (weights, tokens), seconds_each in took.items():
        print(f"{weights}, {tokens} new tokens: {1e3 * median(seconds_each):.1f} ms")


def _step_time(runner: TorchRunner, tokens: int) -> float:
    entries = [
        PageEntry(BlockId(base // _BLOCK), 0, min(_BLOCK, tokens - base) - 1, base)
        for base in range(0, tokens, _BLOCK)
    ]
    step = SequenceStep(
        token_ids=[1] * tokens,
        first_position=0,
        entries=entries,
        sample=SampleAt(sampling=Sampling(temperature=0.0), output_index=0),
    )
    begun = time.perf_counter()
    runner.execute([step])
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
