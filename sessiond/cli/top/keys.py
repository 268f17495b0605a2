"""Reads single keys from a terminal. Main thread only."""

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
    """Split a terminal's input into keys: characters, or names of keys without one."""
    keys: list[str] = []
    while typed:
        for length in range(min(_LONGEST, len(typed)), 0, -1):
            if length == 1 or typed[:length] in _SEQUENCES:
                keys.append(_SEQUENCES.get(typed[:length], typed[:length]))
                typed = typed[length:]
                break
    return keys


class Keys:
    """Standard input, key by key."""

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()

    @contextlib.contextmanager
    def unbuffered(self) -> Iterator[None]:
        """Within the context keys arrive immediately and are not echoed."""
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
        """Wait for keys; returns none after the timeout."""
        if not select.select([sys.stdin], [], [], timeout_s)[0]:
            return []
        typed = os.read(sys.stdin.fileno(), 1024)
        return split_keys(typed.decode(errors="ignore")) if typed else ["q"]
