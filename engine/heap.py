"""Gives memory that was only needed at start back to the system."""

import ctypes
import gc


def give_back_free_memory() -> None:
    """Free unreachable objects, and return free pages of the C heap to the system.

    glibc keeps what lies below the last block in use: after a load, hundreds of MB on the torch
    path. Other C libraries have no such call and keep less.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
