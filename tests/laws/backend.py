"""What the laws need of a model: a runner, and its replies computed without any cache.

To hold another model to the laws, write one Backend and, in a test module:

    class TestMyModelLaws(EngineLaws):
        backend = MyBackend()
"""

from collections.abc import Sequence
from typing import Protocol

from engine.ids import BlockId
from engine.ipc.messages import Sampling
from engine.kv.page_table import PageEntry
from engine.kv.step import ModelRunner, SampleAt, SequenceStep
from engine.kv.token_counts import TokenCounts
from engine.model.native import NativeRunner
from engine.model.runner import TorchRunner
from tests.fakes.absolute_model import AbsoluteFakeModel
from tests.fakes.fake_model import Draw, FakeModel, FakeText, expected_reply


class Backend(Protocol):
    """`vocab_size`: prompts are drawn from ids below it. `stop_id` ends replies."""

    vocab_size: int
    stop_id: int
    steps: int  # about how many operations the random machine takes; fewer for slower models
    block_sizes: Sequence[int]  # in tokens; what the runner can be made with, 16 among them

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


def position_free(backend: Backend) -> Backend:
    """The same model with KV that holds no position: edits of it need no engine of ours."""
    return getattr(backend, "position_free", backend)


def block_bytes(runner: object) -> int:
    """Bytes of one block of a runner's."""
    match runner:
        case AbsoluteFakeModel():
            return 16 * runner.block_size
        case FakeModel():
            return 8 * runner.block_size
        case NativeRunner():
            return runner.pool.shape[1]
        case TorchRunner():
            return runner.store.bytes_per_block
        case _:
            return block_bytes(runner.runner)


def reply_alone(
    dense: ModelRunner,
    ids: Sequence[int],
    *,
    sampling: Sampling,
    max_output_tokens: int,
    stop_ids: Sequence[int],
    block_size: int = 16,
) -> list[int]:
    """One sequence, alone on a straight table from block 0: prefill whole, then token by token."""
    context, reply = list(ids), []
    counts = TokenCounts(ids, uncounted=stop_ids) if sampling.has_penalties else None
    computed = 0
    while len(reply) < max_output_tokens:
        entries = [
            PageEntry(BlockId(number), 0, min(block_size, len(context) - at) - 1, at)
            for number, at in enumerate(range(0, len(context), block_size))
        ]
        step = SequenceStep(
            token_ids=context[computed:],
            first_position=computed,
            entries=entries,
            sample=SampleAt(sampling=sampling, output_index=len(reply), counts=counts),
        )
        computed = len(context)
        (token,) = dense.execute([step])
        reply.append(token)
        context.append(token)
        if token in stop_ids:
            break
        if counts:
            counts.add(token)
    return reply


class DenseBackend:
    """Its replies are those of `dense`, which computes one sequence alone."""

    dense: ModelRunner

    def reply(self, ids: Sequence[int], **asked: object) -> list[int]:
        return reply_alone(self.dense, ids, **asked)


class FakeBackend:
    vocab_size = 256
    stop_id = FakeText.STOP
    steps = 3000
    block_sizes = (1, 3, 8, 16, 256)

    def __init__(self) -> None:
        self.draw = Draw(stop_every=30)

    def runner(self, num_blocks: int, block_size: int) -> ModelRunner:
        return FakeModel(num_blocks=num_blocks, block_size=block_size, draw=self.draw)

    def reply(self, ids: Sequence[int], **asked: object) -> list[int]:
        return expected_reply(ids, draw=self.draw, **asked)


class AbsoluteFakeBackend(FakeBackend):
    def __init__(self) -> None:
        super().__init__()
        self.position_free = FakeBackend()

    def runner(self, num_blocks: int, block_size: int) -> ModelRunner:
        return AbsoluteFakeModel(num_blocks=num_blocks, block_size=block_size, draw=self.draw)
