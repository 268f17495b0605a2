"""What a shifted context must hold, computed with no pool, no cache and no page table of ours."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from engine.ids import BlockId
from engine.ipc.messages import Edit, Sampling
from engine.kv.page_table import PageEntry
from engine.kv.step import ModelRunner, SampleAt, SequenceStep
from engine.kv.token_counts import TokenCounts


class ShiftedContext:
    """One context alone on a runner: each token keeps its slot, edits drop tokens from the list."""

    def __init__(self, runner: ModelRunner, block_size: int) -> None:
        self.ids: list[int] = []
        self.runner = runner
        self._block_size = block_size
        self._places: list[tuple[int, int]] = []  # (block, slot) of each visible token
        self._next: tuple[int, int] = (0, 0)

    def feed(self, ids: Sequence[int], sample: SampleAt | None = None) -> list[int]:
        """Compute KV of `ids`; returns what was drawn."""
        for _ in ids:
            self._places.append(self._next)
            block, slot = self._next
            self._next = (block, slot + 1) if slot + 1 < self._block_size else (block + 1, 0)
        first = len(self.ids)
        self.ids = [*self.ids, *ids]
        if not ids:
            return []
        step = SequenceStep(
            token_ids=list(ids), first_position=first, entries=list(self.entries()), sample=sample
        )
        return self.runner.execute([step])

    def entries(self) -> Iterator[PageEntry]:
        runs = groupby(enumerate(self._places), lambda item: (item[1][0], item[1][1] - item[0]))
        for (block, shift), run in runs:
            slots = [slot for _, (_, slot) in run]
            yield PageEntry(BlockId(block), slots[0], slots[-1], -shift)

    def edit(self, edit: Edit) -> None:
        assert edit.at == len(self.ids)
        gone = {index for start, stop in edit.dropped for index in range(start, stop)}
        self.ids = [token for at, token in enumerate(self.ids) if at not in gone]
        self._places = [place for at, place in enumerate(self._places) if at not in gone]
        self._next = (self._next[0] + 1, 0)

    def reply(
        self, ids: Sequence[int], sampling: Sampling, stop_id: int, longest: int, close: list[int]
    ) -> list[int]:
        """A turn: what joins the context after `ids`. The last of it has no KV."""
        drawn: list[int] = []
        fed = ids
        counts = None
        if sampling.has_penalties:
            counts = TokenCounts([*self.ids, *ids], uncounted=[stop_id])
        while len(drawn) < longest:
            sample = SampleAt(sampling=sampling, output_index=len(drawn), counts=counts)
            (token,) = self.feed(fed, sample)
            if token == stop_id:
                break
            drawn.append(token)
            if counts:
                counts.add(token)
            fed = [token]
        self.feed([*(drawn[-1:] if len(drawn) == longest else []), *close])
        return [*drawn, *close]
