"""The laws on the law backend: float64, every sum in one order, so equal means every bit."""

from collections.abc import Iterator, Sequence

import pytest
import torch

from engine.ids import BlockId
from engine.memory.page_table import PageEntry
from engine.messages import Sampling
from engine.model.law import law_runner
from engine.step import ModelRunner, SampleAt, SequenceStep
from tests.laws.engine_laws import EngineLaws

BLOCK_SIZE = 16
_DENSE_BLOCKS = 40


class LawBackend:
    vocab_size = 256
    stop_id = 7
    steps = 200

    def __init__(self) -> None:
        self.dense = law_runner(_DENSE_BLOCKS, block_size=BLOCK_SIZE)

    def runner(self, num_blocks: int, block_size: int) -> ModelRunner:
        return law_runner(num_blocks, block_size=block_size)

    def reply(
        self,
        ids: Sequence[int],
        *,
        sampling: Sampling,
        max_output_tokens: int,
        stop_ids: Sequence[int],
    ) -> list[int]:
        """One sequence, alone on a straight table: prefill whole, then token by token."""
        context, reply = list(ids), []
        computed = 0
        while len(reply) < max_output_tokens:
            token = self._next(context, computed, sampling, len(reply))
            computed = len(context)
            reply.append(token)
            context.append(token)
            if token in stop_ids:
                break
        return reply

    def _next(self, context: list[int], computed: int, sampling: Sampling, index: int) -> int:
        entries = [
            PageEntry(BlockId(number), 0, min(BLOCK_SIZE, len(context) - at) - 1, at)
            for number, at in enumerate(range(0, len(context), BLOCK_SIZE))
        ]
        step = SequenceStep(
            token_ids=context[computed:],
            first_position=computed,
            entries=entries,
            sample=SampleAt(sampling=sampling, output_index=index),
        )
        return self.dense.execute([step])[0]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The model is so small that handing work to threads costs more than doing it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class TestLawBackend(EngineLaws):
    backend = LawBackend()
