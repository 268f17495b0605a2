"""Chat template interface of the sessions: a Protocol, implemented in `engine.text`."""

from collections.abc import Sequence
from typing import Protocol

from sessiond.facts import Role


class TextFormat(Protocol):
    """Encodes a conversation piece by piece, so that nothing encoded is ever encoded again.

    A context is `open` once, then per message `message`, per reply `generation_prompt`, the
    reply's ids, `close_ids`. Joined, they equal the template's own rendering of a first prompt.
    """

    def open(self, system: str | None) -> Sequence[int]:
        """The front of a conversation; None: without a system prompt, or the template's own."""
        ...

    def message(self, role: Role, text: str) -> Sequence[int]:
        """One whole message, its end included."""
        ...

    @property
    def generation_prompt(self) -> Sequence[int]:
        """What precedes a reply."""
        ...

    @property
    def close_ids(self) -> Sequence[int]:
        """What follows a reply, whether the model wrote it or owes it."""
        ...

    @property
    def stop_ids(self) -> Sequence[int]:
        """Ids that end a reply."""
        ...

    @property
    def user_start(self) -> Sequence[int]:
        """What a user's message most likely begins with, whatever its text."""
        ...
