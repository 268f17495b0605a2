"""One conversation's KV on the runner, its page table edited as the engine's executor does it.

No scheduler, no prefix cache: what is measured is what the model makes of a context, and the page
tables, partitions and edits are the engine's own.
"""

from collections.abc import Sequence

import numpy as np

from benchmarks.quality.measures import Floats
from engine.ids import SessionId
from engine.ipc.messages import Edit, Sampling
from engine.kv.block_pool import BlockPool
from engine.kv.context import Context
from engine.kv.hashing import ChainHasher, KeyExtras
from engine.kv.history import History
from engine.kv.partition import Partition
from engine.kv.step import SampleAt, SequenceStep
from engine.model.choice import AnyModel

_GREEDY = SampleAt(sampling=Sampling(temperature=0.0), output_index=0)
_CHUNK = 256  # tokens of a step


class Contexts:
    """A runner over a pool of `num_blocks` blocks, and the contexts that share it."""

    def __init__(self, model: AnyModel, num_blocks: int) -> None:
        self.runner = model.runner(num_blocks)
        self.pool = BlockPool(num_blocks, forget=lambda _: None)
        self._block_size = model.block_size

    def open(
        self, name: str, front: Sequence[int], *, seals_front: bool = False
    ) -> "PlayedContext":
        """A context that begins with `front`.

        `seals_front`: what follows starts a block of its own, so that it lies in other slots.
        """
        plain = Partition(self._block_size, ChainHasher(KeyExtras(fingerprint="", salt=b"")))
        context = Context(
            session=SessionId(name),
            salt=b"",
            ids=[],
            partition=plain,
            history=History(plain.copy(), limit=0),
        )
        played = PlayedContext(self, context)
        played.feed(front)
        if seals_front:
            played.drop(())
        return played


class PlayedContext:
    """A context of which every id has its KV."""

    def __init__(self, contexts: Contexts, context: Context) -> None:
        self._runner, self._pool = contexts.runner, contexts.pool
        self._context = context

    @property
    def ids(self) -> list[int]:
        """What the model sees."""
        return self._context.ids

    def feed(self, ids: Sequence[int]) -> None:
        """Add ids."""
        for start in range(0, len(ids), _CHUNK):
            self._runner.execute([self._step(ids[start : start + _CHUNK], sample=None)])

    def logits(self, ids: Sequence[int]) -> Floats:
        """Add ids; returns the logits [ids, vocab] of what follows each."""
        step = self._step(ids, sample=_GREEDY)
        return np.asarray(self._runner.logits([step], every_token=True), dtype=np.float32)

    def drop(self, spans: Sequence[tuple[int, int]]) -> None:
        """Shorten it as `shifted`: spans of ids leave, the KV of the others stays."""
        context = self._context
        context.edit(Edit(at=len(context.ids), dropped=tuple(spans)))
        again, gone = context.apply_edit()
        self._pool.share(again)
        self._pool.free(gone)

    def restart(self, length: int, ids: Sequence[int]) -> None:
        """Shorten it as `exact`: keep the first `length` ids, compute `ids` behind them anew."""
        self.cut(length)
        self.feed(ids)

    def cut(self, length: int) -> None:
        """Keep the first `length` ids."""
        self._pool.free(self._context.cut(length))

    def continued(self, ids: Sequence[int], longest: int, stop_ids: Sequence[int]) -> list[int]:
        """The greedy reply to `ids`, without a stop id; the context stays as it is."""
        length, reply, fed = len(self.ids), list[int](), ids
        while len(reply) < longest:
            (token,) = self._runner.execute([self._step(fed, sample=_GREEDY)])
            if token in stop_ids:
                break
            reply.append(token)
            fed = [token]
        self.cut(length)
        return reply

    def close(self) -> None:
        """Give back its blocks."""
        self._pool.free(self._context.release())

    def _step(self, ids: Sequence[int], sample: SampleAt | None) -> SequenceStep:
        context, table = self._context, self._context.table
        blocks = self._pool.try_take(table.blocks_needed(len(ids)))
        if blocks is None:
            raise RuntimeError(f"a pool of {self._pool.total} blocks is too small")
        table.reserve(blocks)
        position = table.next_pos
        context.append(ids)
        table.append(len(ids))
        return SequenceStep(
            token_ids=list(ids), first_position=position, entries=table.entries, sample=sample
        )
