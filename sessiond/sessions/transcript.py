"""Messages to token ids: the system prefix of a context, and the ids that a turn appends.

`TextFormat` is the Protocol of the chat template that `engine.text` implements. Digests of message
prefixes find the stored context that equals the start of a list of messages.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from engine.errors import TemplateError
from sessiond.domain import InputItem, Role
from sessiond.errors import RequestError

T = TypeVar("T")

EMPTY = ""
"""Digest of no messages."""

_LONG_CHARACTERS = 8192  # takes some milliseconds to encode


class TextFormat(Protocol):
    """Encodes a conversation piece by piece, so that no piece is encoded twice.

    A context is `open` once; then `message` for each message; for each reply `generation_prompt`,
    the reply's ids and `close_ids`. Joined, they equal the template's rendering of a first prompt.
    """

    def open(self, system: str | None) -> Sequence[int]:
        """Ids of the system prefix; None: the template's default, or no system prompt."""
        ...

    def message(self, role: Role, text: str) -> Sequence[int]:
        """Ids of one whole message, its end included."""
        ...

    @property
    def generation_prompt(self) -> Sequence[int]:
        """Ids before a reply."""
        ...

    @property
    def close_ids(self) -> Sequence[int]:
        """Ids after a reply, whether or not the model generated them."""
        ...

    @property
    def stop_ids(self) -> Sequence[int]:
        """Ids that end a reply."""
        ...

    @property
    def user_start(self) -> Sequence[int]:
        """Ids that most likely begin a user's message, whatever its text."""
        ...


def extended(digest: str, role: str, text: str) -> str:
    """The digest extended by one message."""
    hasher = hashlib.sha256(digest.encode())
    for part in (role.encode(), text.encode()):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.hexdigest()


def with_items(digest: str | None, items: Iterable[InputItem]) -> str | None:
    """The digest extended by items; None stays None."""
    for item in items:
        digest = None if digest is None else extended(digest, item.role, item.text)
    return digest


def of_system_prefix(text: str | None, opening_text: str | None) -> str:
    """Digest of a system prefix: instructions, then the opening system message."""
    digest = EMPTY
    for part in (text, opening_text):
        if part is not None:
            digest = extended(digest, "system", part)
    return digest


def of_prefixes(messages: Sequence[InputItem]) -> list[str]:
    """Digests of the first 1, 2, … messages.

    A `developer` message at the start counts as `system`, as in `of_system_prefix`.
    """
    digest, found = EMPTY, []
    for index, item in enumerate(messages):
        opens = index == 0 and item.role in {"system", "developer"}
        digest = extended(digest, "system" if opens else item.role, item.text)
        found.append(digest)
    return found


class Transcript:
    """Encodes with the model's template; long texts in a thread, off the event loop."""

    def __init__(self, text: TextFormat, *, ignore_eos: bool = False) -> None:
        self._text = text
        self._stop_ids = [] if ignore_eos else list(text.stop_ids)

    @property
    def close_ids(self) -> list[int]:
        """Ids after a reply."""
        return list(self._text.close_ids)

    @property
    def stop_ids(self) -> list[int]:
        """Ids that end a reply; none when end-of-turn tokens are ignored."""
        return list(self._stop_ids)

    @property
    def user_start(self) -> list[int]:
        """Ids that most likely begin a user's message."""
        return list(self._text.user_start)

    async def system_prefix(
        self, instructions: str | None, opening_text: str | None
    ) -> tuple[int, ...]:
        """Ids of the system prefix: instructions, then an opening system message, if any.

        Raises:
            RequestError: the template rejects a text.
        """

        def work() -> list[int]:
            if instructions is None:
                return list(self._text.open(opening_text))
            ids = list(self._text.open(instructions))
            return ids if opening_text is None else ids + _system(self._text, opening_text)

        characters = len(instructions or "") + len(opening_text or "")
        param = "input" if instructions is None else "instructions"
        return tuple(await self._encode(work, characters, param=param))

    async def delta(self, items: Sequence[InputItem], *, generate: bool) -> tuple[int, ...]:
        """Ids that a turn adds before its reply.

        Raises:
            RequestError: the template rejects a message.
        """
        return (await self.by_turns([items], generate=generate))[0]

    async def by_turns(
        self, turns: Sequence[Sequence[InputItem]], *, generate: bool
    ) -> list[tuple[int, ...]]:
        """Ids of each turn's messages; those of the last one end with what precedes its reply.

        Raises:
            RequestError: the template rejects a message.
        """

        def work() -> list[tuple[int, ...]]:
            found = [self._messages(items) for items in turns]
            if generate:
                found[-1] += self._text.generation_prompt
            return [tuple(ids) for ids in found]

        characters = sum(len(item.text) for items in turns for item in items)
        return await self._encode(work, characters, param="input")

    def _messages(self, items: Sequence[InputItem]) -> list[int]:
        return [token for item in items for token in self._text.message(item.role, item.text)]

    @staticmethod
    async def _encode(work: Callable[[], T], characters: int, *, param: str) -> T:
        try:
            long = characters > _LONG_CHARACTERS
            return await asyncio.to_thread(work) if long else work()
        except TemplateError as error:
            raise RequestError("invalid_value", str(error), param=param) from error


def _system(text: TextFormat, opening_text: str) -> list[int]:
    return list(text.message("system", opening_text))
