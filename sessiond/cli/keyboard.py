"""Owns standard input and Ctrl-C of a chat: lines at the prompt, cancels during a reply."""

import contextlib
import os
import select
import signal
import sys
from collections import deque
from collections.abc import Iterator
from types import FrameType

# `readline` checks for signals only when one interrupts its wait: a Ctrl-C between the prompt and
# that wait would be unseen until the line is entered. A timer interrupts the wait this often.
_SIGNAL_CHECK_S = 0.25


class Keyboard:
    """Reads lines. While a reply streams, Ctrl-C or a typed `/cancel` requests a cancel.

    Other lines typed during a reply wait for the next prompt. Main thread only (signals).
    """

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty()
        self._ahead: deque[str] = deque()
        self._cancel_wanted = False
        if self.interactive:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 -- gives `input` editing and history

    def read_line(self, prompt: str) -> str | None:
        """Return the next line, None at the end of input.

        One Ctrl-C clears the input, since it may have been meant for a reply that has just ended;
        a second one in a row raises KeyboardInterrupt.
        """
        if self._ahead:
            line = self._ahead.popleft()
            if self.interactive:
                sys.stdout.write(prompt + line + "\n")
            return line
        try:
            return self._input(prompt)
        except KeyboardInterrupt:
            if not self.interactive:
                raise
        sys.stdout.write("\n(Ctrl-C again leaves)\n")
        return self._input(prompt)

    def _input(self, prompt: str) -> str | None:
        try:
            with _signals_seen() if self.interactive else contextlib.nullcontext():
                return input(prompt if self.interactive else "")
        except EOFError:
            return None

    @contextlib.contextmanager
    def streaming(self) -> Iterator[None]:
        """Within the context one Ctrl-C requests a cancel and a second raises KeyboardInterrupt."""
        self._cancel_wanted = False
        before = signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def cancel_wanted(self) -> bool:
        """Return whether the user requested a cancel since `streaming` began. Never blocks."""
        while self.interactive and select.select([sys.stdin], [], [], 0)[0]:
            typed = os.read(sys.stdin.fileno(), 65536)  # a terminal returns one line at a time
            if not typed:
                break
            self._take(typed.decode(errors="replace"))
        return self._cancel_wanted

    def _take(self, typed: str) -> None:
        for line in typed.splitlines():
            if line.strip() == "/cancel":
                self._cancel_wanted = True
            else:
                self._ahead.append(line)

    def _on_interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        if self._cancel_wanted:
            raise KeyboardInterrupt
        self._cancel_wanted = True


@contextlib.contextmanager
def _signals_seen() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, lambda _signal, _frame: None)
    signal.setitimer(signal.ITIMER_REAL, _SIGNAL_CHECK_S, _SIGNAL_CHECK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
