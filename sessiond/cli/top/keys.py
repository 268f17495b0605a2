"""Reads single keys of a terminal while a page is shown. Main thread only."""

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Iterator

_SEQUENCES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x03": "interrupt",
    "\x1b": "escape",
}
_LONGEST = 3


def split_keys(typed: str) -> list[str]:
    """The keys of what a terminal sent: characters, or names of keys that have none."""
    keys: list[str] = []
    while typed:
        for length in range(min(_LONGEST, len(typed)), 0, -1):
            if length == 1 or typed[:length] in _SEQUENCES:
                keys.append(_SEQUENCES.get(typed[:length], typed[:length]))
                typed = typed[length:]
                break
    return keys


class Keys:
    """Standard input, key by key. `wait` returns when a key comes or the time is over."""

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()

    @contextlib.contextmanager
    def unbuffered(self) -> Iterator[None]:
        """While this lasts, keys come at once and are not echoed."""
        if not self.interactive:
            yield
            return
        before = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)
        try:
            yield
        finally:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

    def wait(self, timeout_s: float) -> list[str]:
        """The keys that came within the time, none if it passed."""
        if not select.select([sys.stdin], [], [], timeout_s)[0]:
            return []
        typed = os.read(sys.stdin.fileno(), 1024)
        return split_keys(typed.decode(errors="ignore")) if typed else ["q"]
