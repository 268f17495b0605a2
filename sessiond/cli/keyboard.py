"""Owns standard input and Ctrl-C of a chat: messages at the prompt, cancels during a reply."""

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from sessiond.cli.ask_server import not_utf8
from sessiond.cli.typed import (
    PASTES_MARKED,
    PASTES_UNMARKED,
    ChatHistory,
    TypedAhead,
    history_file,
)

try:
    import readline
except ImportError:  # a Python without it: no editing, no history
    readline = None  # type: ignore[assignment]

# `readline` checks for signals only when one interrupts its wait: a Ctrl-C between the prompt and
# that wait would be unseen until the line is entered. A timer interrupts the wait this often.
_SIGNAL_CHECK_S = 0.25
_PASTE_LIMIT_S = 1.0  # for the rest of a paste that began before the reply ended
_READ_BYTES = 65536


class InputError(Exception):
    """Standard input is not text; the message says what is wrong with it."""


class Keyboard:
    """Reads messages. While a reply streams, Ctrl-C or a typed `/cancel` requests a cancel.

    What else is typed during a reply is not echoed and waits for the next prompt. A pasted text is
    one message, whatever its lines. Main thread only (signals). `commands`: completed by Tab.
    """

    def __init__(self, commands: Sequence[str] = ()) -> None:
        self.interactive = sys.stdin.isatty()
        self._ahead: deque[str] = deque()
        self._typing = TypedAhead()
        self._cancel_wanted = False
        self._lines = 0  # of a pipe
        self._history: ChatHistory | None = None
        if self.interactive:
            sys.stdin.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]  # a terminal
        if self.interactive and readline is not None:
            self._history = ChatHistory(history_file())
            _prepare_prompt(commands, self._history.load())

    def read_message(self, prompt: str) -> str | None:
        """Return the next message, None at the end of input.

        One Ctrl-C clears the input, since it may have been meant for a reply that has just ended;
        a second one in a row raises KeyboardInterrupt.

        Raises:
            InputError: a pipe has bytes that are not UTF-8. Those of a terminal become U+FFFD.
        """
        if not self.interactive:
            return self._read_line()
        message = self._show_ahead(prompt) if self._ahead else self._ask(prompt)
        if message and message.strip() and self._history:
            self._history.add(message)
        return message

    def _show_ahead(self, prompt: str) -> str:
        message = self._ahead.popleft()
        sys.stdout.write(f"{prompt}{message}\n")
        if self._history:
            readline.add_history(message)
        return message

    def _read_line(self) -> str | None:
        """Return a pipe's next line, without a byte order mark."""
        line = sys.stdin.buffer.readline()
        self._lines += 1
        try:
            text = line.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            where = f" in line {self._lines}"
            raise InputError(not_utf8("standard input", line[error.start], where)) from error
        return text.rstrip("\r\n") if line else None

    def _ask(self, prompt: str) -> str | None:
        try:
            return self._input(prompt)
        except KeyboardInterrupt:
            pass
        sys.stdout.write("\n(Ctrl-C again leaves)\n")
        return self._input(prompt)

    def _input(self, prompt: str) -> str | None:
        try:
            with _signals_seen(), _written_already(self._typing.take_draft()):
                text = input(prompt)
        except EOFError:
            return None
        clean = text.encode(errors="surrogateescape").decode(errors="replace")
        if clean != text:
            sys.stdout.write("(What is not UTF-8 was replaced by \ufffd.)\n")
        return clean

    @contextlib.contextmanager
    def streaming(self) -> Iterator[None]:
        """Within the context one Ctrl-C requests a cancel and a second raises KeyboardInterrupt."""
        self._cancel_wanted = False
        before = signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            with _keys_unechoed(self._finish_typing) if self.interactive else _NOTHING:
                yield
        finally:
            signal.signal(signal.SIGINT, before)

    def cancel_wanted(self) -> bool:
        """Return whether the user requested a cancel since `streaming` began. Never blocks."""
        while self.interactive and self._take_keys(0):
            pass
        return self._cancel_wanted

    def _finish_typing(self) -> None:
        """Take what was typed until the reply's end, and the rest of a paste."""
        while self._take_keys(_PASTE_LIMIT_S if self._typing.pasting else 0):
            pass
        self._typing.pasting = False

    def _take_keys(self, timeout_s: float) -> bool:
        if not select.select([sys.stdin], [], [], timeout_s)[0]:
            return False
        keys = os.read(sys.stdin.fileno(), _READ_BYTES)
        for message in self._typing.feed(keys):
            if message.strip() == "/cancel":
                self._cancel_wanted = True
            else:
                self._ahead.append(message)
        return bool(keys)

    def _on_interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        if self._cancel_wanted:
            raise KeyboardInterrupt
        self._cancel_wanted = True


_NOTHING: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


def _prepare_prompt(commands: Sequence[str], history: Sequence[str]) -> None:
    """Set up `input`: marked pastes, Alt-Enter for a new line, Tab for commands, history."""
    readline.parse_and_bind("set enable-bracketed-paste on")
    readline.parse_and_bind(r'"\e\C-m": "\C-q\C-j"')
    readline.parse_and_bind("tab: complete")
    readline.set_completer_delims(" \n")
    readline.set_completer(_completer(commands))
    for message in history:
        readline.add_history(message)


def _completer(commands: Sequence[str]) -> Callable[[str, int], str | None]:
    def complete(start: str, state: int) -> str | None:
        found = [name for name in commands if start and name.startswith(start)]
        at_start = readline.get_begidx() == 0
        return found[state] if at_start and state < len(found) else None

    return complete


@contextlib.contextmanager
def _written_already(draft: str) -> Iterator[None]:
    """Let the next `input` begin with a text that can be edited."""
    if draft and readline is not None:
        readline.set_startup_hook(lambda: readline.insert_text(draft))
    try:
        yield
    finally:
        if draft and readline is not None:
            readline.set_startup_hook()


@contextlib.contextmanager
def _keys_unechoed(at_end: Callable[[], None]) -> Iterator[None]:
    """Keep typed keys out of a reply and in order; `at_end` runs before the terminal is as before.

    Control characters still make signals.
    """
    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    marks = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    tty.setcbreak(keys, termios.TCSADRAIN)
    try:
        if marks:
            sys.stdout.write(PASTES_MARKED)
            sys.stdout.flush()
        yield
    finally:
        at_end()
        if marks:
            sys.stdout.write(PASTES_UNMARKED)
            sys.stdout.flush()
        termios.tcsetattr(keys, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _signals_seen() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, lambda _signal, _frame: None)
    signal.setitimer(signal.ITIMER_REAL, _SIGNAL_CHECK_S, _SIGNAL_CHECK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
