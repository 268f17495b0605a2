"""Returns startup memory to the system, and bounds the garbage collector's pauses."""

import ctypes
import gc
import time
from collections.abc import Callable
from typing import Any

_EVERYTHING_EVERY_S = 300.0  # reference cycles live at most this long
_FEW = 10_000  # objects: a collection takes a millisecond or two for this many
_FULL = 2  # generation of the oldest objects


def trim_heap() -> None:
    """Free unreachable objects, and return free pages of the C heap to the system.

    glibc keeps free memory below the last used block: after a load, hundreds of MB on the torch
    path. Other C libraries have no such call and keep less.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class ShortPauses:
    """Limits garbage collections to new objects.

    A full collection with 10,000 sessions would stop the process for a tenth of a second.

    Survivors of a full collection are excluded from later ones, once they are more than `few`
    objects; a smaller number may be work in progress. Nearly all objects, sockets and turns too,
    are freed by their last reference. For reference cycles everything is collected again every
    `everything_every_s`. Owns a hook of the process's collector from `begin` to `end`.
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
        """Start to limit collections."""
        gc.callbacks.append(self._note)

    def end(self) -> None:
        """Stop: collections cover everything again."""
        gc.callbacks.remove(self._note)
        gc.unfreeze()

    def _note(self, phase: str, about: dict[str, Any]) -> None:
        if phase != "stop" or about["generation"] != _FULL:
            return
        if self._clock() >= self._everything_at_s:
            self._everything_at_s = self._clock() + self._everything_every_s
            gc.unfreeze()  # for the next collection
        elif len(gc.get_objects(generation=_FULL)) > self._few:
            gc.freeze()
