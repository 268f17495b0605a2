"""Drafts for the laws: any number of them, the first ones true, so that all there is to get wrong
about accepting and rejecting happens often."""

import random
from collections.abc import Mapping, Sequence

from engine.core.slot import Slot
from engine.core.step_cost import StepLoad, StepPrice
from engine.ids import TurnId
from tests.laws.backend import Backend

_MOST = 6


class OracleDrafts:
    """Stands in for engine.core.speculation.Speculation: knows what a dense model replies."""

    def __init__(self, backend: Backend, seed: int = 0) -> None:
        self._backend = backend
        self._random = random.Random(seed)
        self._replies: dict[TurnId, list[int]] = {}

    def drafts(
        self, work: Sequence[tuple[Slot, int]], price: StepPrice
    ) -> Mapping[TurnId, Sequence[int]]:
        return {
            slot.turn: self._of(slot)
            for slot, tokens in work
            if slot.command.generate and tokens == slot.context.pending
        }

    def note(self, load: StepLoad, seconds: float, price: StepPrice) -> None: ...

    def learn(self, slot: Slot, tokens: Sequence[int]) -> None: ...

    def _of(self, slot: Slot) -> list[int]:
        if slot.turn not in self._replies:
            self._replies[slot.turn] = self._backend.reply(
                slot.context.ids[: slot.prompt_len],
                sampling=slot.command.sampling,
                max_output_tokens=slot.max_output_tokens,
                stop_ids=slot.command.stop_ids,
            )
        true = self._replies[slot.turn][slot.output_tokens :]
        drafts = true[: self._random.randint(0, _MOST)]
        while len(drafts) < _MOST and self._random.random() < 0.5:
            drafts.append(self._random.randrange(self._backend.vocab_size))
        return drafts[: slot.tokens_left - 1]
