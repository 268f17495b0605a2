"""Python's share of a step: `python -m benchmarks.engine_step MODEL`. No server, no gateway.

Turns decode through the whole engine (`EngineLoop.step`: scheduling, memory, kernels, sampling,
detokenising, events), 1, 8 and 32 at once. Prints tokens per second and the part of the time that
was spent outside the C library, in the engine and in `NativeRunner.execute` alone.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from engine.config import EngineConfig
from engine.core.loop import EngineLoop
from engine.files.spec_reader import read_spec
from engine.ids import BlockId, SessionId, TurnId
from engine.ipc.messages import Sampling, SetContext, SubmitTurn
from engine.kv.step import SequenceStep
from engine.model.native import NativeModel, NativeRunner, prepare_native_model
from engine.text.tokenizer import load_tokenizer

_PROMPT_TOKENS = 224
_WARM_UP_STEPS = 20


class _TimedRunner:
    """Passes steps on and adds up the time they take."""

    def __init__(self, runner: NativeRunner) -> None:
        self._runner = runner
        self.seconds = 0.0

    def execute(self, batch: Sequence[SequenceStep]) -> list[int]:
        """See engine.kv.step.ModelRunner."""
        start = time.perf_counter()
        drawn = self._runner.execute(batch)
        self.seconds += time.perf_counter() - start
        return drawn

    def copy_block(self, source: BlockId, target: BlockId) -> None:
        """See engine.kv.step.ModelRunner."""
        self._runner.copy_block(source, target)

    def zero_block(self, block: BlockId) -> None:
        """See engine.kv.step.ModelRunner."""
        self._runner.zero_block(block)


def measure(model: NativeModel, config: EngineConfig, batch: int, steps: int) -> None:
    """Decode `steps` steps of `batch` turns and print one line."""
    num_blocks = batch * (_PROMPT_TOKENS + steps) // model.block_size + 2 * batch
    native = model.runner(num_blocks)
    runner = _TimedRunner(native)
    loop = EngineLoop(
        config=config,
        num_blocks=num_blocks,
        kv_bytes_per_block=model.kv_bytes_per_block,
        max_model_len=model.max_model_len,
        fingerprint=model.fingerprint,
        runner=runner,
        tokenizer=load_tokenizer(Path(config.model)),
        emit=lambda _event: None,
        clock=time.monotonic,
    )
    for number in range(batch):
        _submit(loop, number, steps + _WARM_UP_STEPS)
    for _ in range(_WARM_UP_STEPS):
        loop.step()
    native.profile()
    runner.seconds = 0.0
    start = time.perf_counter()
    for _ in range(steps - _WARM_UP_STEPS):
        loop.step()
    wall = time.perf_counter() - start
    inside = sum(native.profile().values())
    print(
        f"batch {batch:>2}: {batch * (steps - _WARM_UP_STEPS) / wall:7.0f} tok/s, outside the "
        f"kernels {100 * (1 - inside / wall):4.1f} % of the engine's time, "
        f"{100 * (1 - inside / runner.seconds):4.1f} % of the runner's"
    )


def _submit(loop: EngineLoop, number: int, steps: int) -> None:
    session = SessionId(f"conv_{number}")
    loop.handle(SetContext(session=session, salt=b"", ids=[]))
    loop.handle(
        SubmitTurn(
            turn=TurnId(f"resp_{number}"),
            session=session,
            ids=[(17 * index + 101 * number) % 40_000 for index in range(_PROMPT_TOKENS)],
            sampling=Sampling(temperature=0.0),
            max_output_tokens=steps,
        )
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8, 32])
    arguments = parser.parse_args()
    config = EngineConfig(model=str(arguments.model), num_speculative_tokens=0)
    model = prepare_native_model(read_spec(arguments.model), config)
    for batch in arguments.batches:
        measure(model, config, batch, arguments.steps)


if __name__ == "__main__":
    main()
