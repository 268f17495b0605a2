"""Traces the calls of our own functions: which files they lie in, and how deep they stack."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[2]
PACKAGES = ("sessiond", "engine", "policies")


@dataclass
class Trace:
    """`calls` in their order, as (file, function); `deepest`: the most of our frames at once.

    Calls are noted while `records` is set. A comprehension counts as a call, and so does each item
    of a generator: Python 3.11 runs both in a frame of their own.
    """

    records: bool = True
    calls: list[tuple[str, str]] = field(default_factory=list)
    deepest: list[str] = field(default_factory=list)

    @property
    def files(self) -> set[str]:
        """The files that at least one function was called in."""
        return {file for file, _ in self.calls}

    def __str__(self) -> str:
        shown = "\n".join(f"  {file} {function}" for file, function in self.calls)
        return f"{len(self.calls)} calls in {len(self.files)} files:\n{shown}"

    def note(self, frame: FrameType, event: str, _arg: object) -> None:
        """The profile function: see `sys.setprofile`."""
        if event != "call" or not self.records:
            return
        file = _file_of(frame)
        if file is None:
            return
        self.calls.append((file, frame.f_code.co_qualname))
        stack = []
        caller: FrameType | None = frame
        while caller is not None:
            at = _file_of(caller)
            if at is not None:
                stack.append(f"{at} {caller.f_code.co_qualname}")
            caller = caller.f_back
        if len(stack) > len(self.deepest):
            self.deepest = stack[::-1]


@contextmanager
def traced(*, records: bool = True) -> Iterator[Trace]:
    """Trace this thread, and those that start within the block."""
    trace, before = Trace(records), sys.getprofile()
    threading.setprofile(trace.note)
    sys.setprofile(trace.note)
    try:
        yield trace
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def _file_of(frame: FrameType) -> str | None:
    """The frame's file, relative to the root, if it is one of our packages'."""
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(ROOT):
        return None
    file = path.relative_to(ROOT)
    return file.as_posix() if file.parts[0] in PACKAGES else None
