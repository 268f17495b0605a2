"""Messages to token ids: the system prefix of a context, and what a turn appends to it.

`TextFormat` is the Protocol of the chat template that `engine.text` implements. Digests of message
prefixes tell whether a context says the same as a list of messages.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from engine.errors import TemplateError
from sessiond.domain import InputItem, Role
from sessiond.errors import RequestError


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


EMPTY = ""


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
    """Number i is that of the first i + 1 messages. One that opens a chat says what rules it."""
    digest, found = EMPTY, []
    for index, item in enumerate(messages):
        opens = index == 0 and item.role in {"system", "developer"}
        digest = extended(digest, "system" if opens else item.role, item.text)
        found.append(digest)
    return found


_LONG_CHARACTERS = 8192  # some milliseconds of encoding


class Transcript:
    """Encodes with the model's template, long texts beside the event loop."""

    def __init__(self, text: TextFormat, *, ignore_eos: bool = False) -> None:
        self._text = text
        self._stop_ids = [] if ignore_eos else list(text.stop_ids)

    @property
    def close_ids(self) -> list[int]:
        """What follows a reply."""
        return list(self._text.close_ids)

    @property
    def stop_ids(self) -> list[int]:
        """Ids that end a reply; none when end-of-turn tokens are ignored."""
        return list(self._stop_ids)

    @property
    def user_start(self) -> list[int]:
        """What a user's message most likely begins with."""
        return list(self._text.user_start)

    async def system_prefix(
        self, instructions: str | None, opening_text: str | None
    ) -> tuple[int, ...]:
        """The ids that a context begins with: instructions, then a system message, if any.

        Raises:
            RequestError: the template refuses a text.
        """

        def work() -> list[int]:
            if instructions is None:
                return list(self._text.open(opening_text))
            ids = list(self._text.open(instructions))
            return ids if opening_text is None else ids + _system(self._text, opening_text)

        characters = len(instructions or "") + len(opening_text or "")
        param = "input" if instructions is None else "instructions"
        return await self._encode(work, characters, param=param)

    async def delta(self, items: Sequence[InputItem], *, generate: bool) -> tuple[int, ...]:
        """What a turn adds before its reply.

        Raises:
            RequestError: the template refuses a message.
        """

        def work() -> list[int]:
            ids: list[int] = []
            for item in items:
                ids += self._text.message(item.role, item.text)
            if generate:
                ids += self._text.generation_prompt
            return ids

        return await self._encode(work, sum(len(item.text) for item in items), param="input")

    @staticmethod
    async def _encode(
        work: Callable[[], Sequence[int]], characters: int, *, param: str
    ) -> tuple[int, ...]:
        try:
            long = characters > _LONG_CHARACTERS
            return tuple(await asyncio.to_thread(work) if long else work())
        except TemplateError as error:
            raise RequestError("invalid_value", str(error), param=param) from error


def _system(text: TextFormat, opening_text: str) -> list[int]:
    return list(text.message("system", opening_text))
