"""Pending secure deletes: they are sent again to a new engine until one has completed them.

A disk tier outlives the engine that wrote it. Asyncio thread only.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from engine.client import EngineClient
from engine.errors import EngineUnavailableError
from engine.messages import CloseContext, SetContext
from engine.questions import GetContext

_ANSWERS_WITHIN_S = 1.0


@dataclass(slots=True, eq=False)
class _Owed:
    """A pending delete. `epoch`: of the engine that got it; 0: none."""

    contexts: Sequence[SetContext]
    epoch: int


class Unerased:
    """Pending deletes, kept until an engine has completed them."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._owed: list[_Owed] = []

    def __len__(self) -> int:
        return len(self._owed)

    @property
    def may_be(self) -> bool:
        """Whether KV outlives an engine."""
        return any(tier.name == "disk" for tier in self._engine.info.tiers)

    def note(self, contexts: Sequence[SetContext], *, epoch: int) -> None:
        """Add all contexts of a session; the engine of `epoch` got the command."""
        if contexts:
            self._owed.append(_Owed(contexts, epoch))

    async def settle(self) -> None:
        """Send incomplete deletes to a new engine; drop completed ones."""
        if not self._owed:
            return
        with contextlib.suppress(EngineUnavailableError, TimeoutError):
            epoch = self._engine.epoch
            told = [owed for owed in self._owed if owed.epoch == epoch]
            for owed in self._owed:
                if owed.epoch != epoch:
                    self._tell(owed)
                    owed.epoch = epoch
            if told:
                async with asyncio.timeout(_ANSWERS_WITHIN_S):
                    await self._engine.ask(GetContext(session=told[0].contexts[0].session))
                if self._engine.epoch == epoch:
                    self._owed = [owed for owed in self._owed if owed not in told]

    def _tell(self, owed: _Owed) -> None:
        for context in owed.contexts:
            self._engine.send(context)
            self._engine.send(CloseContext(session=context.session, erase=True))
