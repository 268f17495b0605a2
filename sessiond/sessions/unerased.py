"""Erasures that an engine was told of, or was away for: an engine that is new is told again.

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
    """`epoch`: that of the engine that was told of it; 0: none was."""

    contexts: Sequence[SetContext]
    epoch: int


class Unerased:
    """What is to be erased until an engine has lived on after it was told so."""

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
        """All that a session ever had is to be erased; the engine of that epoch was told."""
        if contexts:
            self._owed.append(_Owed(contexts, epoch))

    async def settle(self) -> None:
        """Tell a new engine what the last may not have done; forget what one has done."""
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
