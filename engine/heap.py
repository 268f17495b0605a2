"""Gives memory that was only needed at start back to the system, and keeps collections short."""

import ctypes
import gc
import time
from collections.abc import Callable
from typing import Any

_EVERYTHING_EVERY_S = 300.0  # what is left in circles meanwhile is kept so long
_FEW = 10_000  # objects: a collection looks at so many in a millisecond or two
_FULL = 2  # the generation of all that lives


def give_back_free_memory() -> None:
    """Free unreachable objects, and return free pages of the C heap to the system.

    glibc keeps what lies below the last block in use: after a load, hundreds of MB on the torch
    path. Other C libraries have no such call and keep less.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class ShortPauses:
    """Lets a collection look at what is new, not at all that lives.

    That of 10,000 sessions would take a tenth of a second, in which nobody is served.

    What has survived a full collection is left out of those that follow, once it is more than a
    `few` objects: else circles of what is in work just then would add up. Nearly all of it, sockets
    and turns too, ends without the collector, by its last reference; for what does not, everything
    is looked at again every `everything_every_s`. Owns a hook of the process's collector from
    `begin` to `end`.
    """

    def __init__(
        self,
        *,
        few: int = _FEW,
        everything_every_s: float = _EVERYTHING_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._few = few
        self._everything_every_s = everything_every_s
        self._clock = clock
        self._everything_at_s = clock() + everything_every_s

    def begin(self) -> None:
        """From now on."""
        gc.callbacks.append(self._note)

    def end(self) -> None:
        """Everything is looked at again."""
        gc.callbacks.remove(self._note)
        gc.unfreeze()

    def _note(self, phase: str, about: dict[str, Any]) -> None:
        if phase != "stop" or about["generation"] != _FULL:
            return
        if self._clock() >= self._everything_at_s:
            self._everything_at_s = self._clock() + self._everything_every_s
            gc.unfreeze()  # by the next one
        elif len(gc.get_objects(generation=_FULL)) > self._few:
            gc.freeze()
