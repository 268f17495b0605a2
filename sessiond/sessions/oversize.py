"""Keeps the end of an input too long for any context: the only cut inside a turn."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from sessiond.facts import InputItem

_LONGEST_TOKEN = 32  # characters; where a text has longer ones its end could be a little longer

Encode = Callable[[Sequence[InputItem]], Awaitable[tuple[int, ...]]]
"""Ids of messages with what follows them."""


async def keep_end(
    items: Sequence[InputItem], most_tokens: int, encode: Encode
) -> tuple[int, ...] | None:
    """Ids of as much of the input's end as `most_tokens` hold; None: of no text at all.

    The last messages stay whole; of the one before them the end of its text stays, in a message of
    its role.
    """
    most = max(0, most_tokens)

    def last(count: int) -> Sequence[InputItem]:
        return items[len(items) - count :]

    # no message is without a token
    whole, best = await _longest(min(len(items), most), last, most, encode)
    if whole == len(items):
        return best
    cut, behind = items[-whole - 1], last(whole)

    def end(count: int) -> Sequence[InputItem]:
        return [replace(cut, text=cut.text[-count:]), *behind]

    _, longer = await _longest(min(len(cut.text), most * _LONGEST_TOKEN), end, most, encode)
    return longer or best


async def _longest(
    most: int, part: Callable[[int], Sequence[InputItem]], most_tokens: int, encode: Encode
) -> tuple[int, tuple[int, ...] | None]:
    """The largest count, up to `most`, whose part fits, and its ids; 0 and None: none fits.

    Binary search: an input may have thousands of messages, each of a few tokens.
    """
    fits, best = 0, None
    while fits < most:
        middle = (fits + most + 1) // 2
        ids = await encode(part(middle))
        if len(ids) <= most_tokens:
            fits, best = middle, ids
        else:
            most = middle - 1
    return fits, best
