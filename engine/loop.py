"""The engine's loop: commands in, steps, events out. Owns all of the engine's state.

Single-threaded: whoever drives it (a thread, a process's main) calls from one thread only.
"""

from collections.abc import Callable
from typing import Protocol

from engine.config import EngineConfig
from engine.messages import Answer, Command, Query, TurnEvent
from engine.step import ModelRunner


class TokenText(Protocol):
    """The part of a tokenizer that the loop needs."""

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 bytes of one token; empty for a special."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of a text in which specials are text."""
        ...


class EngineLoop:
    """Runs turns on one pool of blocks.

    `fingerprint` names model version, kernel path and dtype: it is part of every prefix key.
    `clock` gives seconds, monotonic.
    """

    def __init__(  # noqa: PLR0913 -- the one place where an engine is put together
        self,
        *,
        config: EngineConfig,
        num_blocks: int,
        kv_bytes_per_block: int,
        max_model_len: int,
        fingerprint: str,
        runner: ModelRunner,
        tokenizer: TokenText,
        emit: Callable[[TurnEvent], None],
        clock: Callable[[], float],
    ) -> None:
        self._emit = emit

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        raise NotImplementedError

    def handle(self, command: Command) -> None:
        """Take one command; may emit events."""
        raise NotImplementedError

    def answer(self, query: Query) -> Answer:
        """Answer a question about the state."""
        raise NotImplementedError

    def step(self) -> bool:
        """Run one step of the model over the turns that are due; False when there was nothing."""
        raise NotImplementedError
