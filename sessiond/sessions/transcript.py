"""Messages to token ids: the front of a context, and what a turn adds to it."""

import asyncio
from collections.abc import Callable, Sequence

from engine.errors import TemplateError
from sessiond.errors import RequestError
from sessiond.facts import InputItem
from sessiond.sessions.text_format import TextFormat

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

    async def front(self, instructions: str | None, opening_text: str | None) -> tuple[int, ...]:
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
