"""The end of an input that is too long for any context: the one exception to whole turns."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from sessiond.facts import InputItem

_LONGEST_TOKEN = 32  # characters; where a text has longer ones its end could be a little longer

Encode = Callable[[Sequence[InputItem]], Awaitable[tuple[int, ...]]]


async def keep_end(
    items: Sequence[InputItem], most_tokens: int, encode: Encode
) -> tuple[int, ...] | None:
    """Ids of as much of the input's end as `most_tokens` hold; None: of no text at all.

    The last messages stay whole; of the one before them the end of its text stays, in a message of
    its role. `encode` gives the ids of messages with what follows them.
    """
    best, whole = None, len(items)
    while whole and len(ids := await encode(items[whole - 1 :])) <= most_tokens:
        best, whole = ids, whole - 1
    if not whole:
        return best
    cut, behind = items[whole - 1], items[whole:]
    fits, too_long = 0, min(len(cut.text), max(0, most_tokens) * _LONGEST_TOKEN + 1)
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        ids = await encode([replace(cut, text=cut.text[-middle:]), *behind])
        if len(ids) <= most_tokens:
            best, fits = ids, middle
        else:
            too_long = middle
    return best
