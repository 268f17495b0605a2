"""What the laws need of a model: a runner, and its replies computed without any cache.

To hold another model to the laws, write one Backend and, in a test module:

    class TestMyModelLaws(EngineLaws):
        backend = MyBackend()
"""

from collections.abc import Sequence
from typing import Protocol

from engine.messages import Sampling
from engine.step import ModelRunner
from tests.fakes.fake_model import Draw, FakeModel, FakeText, expected_reply


class Backend(Protocol):
    """`vocab_size`: prompts are drawn from ids below it. `stop_id` ends replies."""

    vocab_size: int
    stop_id: int
    steps: int  # about how many operations the random machine takes; fewer for slower models

    def runner(self, num_blocks: int, block_size: int) -> ModelRunner: ...

    def reply(
        self,
        ids: Sequence[int],
        *,
        sampling: Sampling,
        max_output_tokens: int,
        stop_ids: Sequence[int],
    ) -> list[int]:
        """Sampled ids after `ids`, computed densely, up to the first of `stop_ids`, included."""
        ...


class FakeBackend:
    vocab_size = 256
    stop_id = FakeText.STOP
    steps = 3000

    def __init__(self) -> None:
        self.draw = Draw(stop_every=30)

    def runner(self, num_blocks: int, block_size: int) -> ModelRunner:
        return FakeModel(num_blocks=num_blocks, block_size=block_size, draw=self.draw)

    def reply(
        self,
        ids: Sequence[int],
        *,
        sampling: Sampling,
        max_output_tokens: int,
        stop_ids: Sequence[int],
    ) -> list[int]:
        return expected_reply(
            ids,
            draw=self.draw,
            max_output_tokens=max_output_tokens,
            stop_ids=stop_ids,
            sampling=sampling,
        )
