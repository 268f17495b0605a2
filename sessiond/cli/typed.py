"""What is typed into a chat: while a reply streams, and in earlier chats."""

import codecs
import json
import os
import re
from pathlib import Path

from sessiond.settings import config_folder

MAX_ENTRIES = 1000
PASTES_MARKED = "\x1b[?2004h"
"""Makes a terminal mark where a pasted text begins and ends (bracketed paste)."""
PASTES_UNMARKED = "\x1b[?2004l"

_PASTE_BEGINS, _PASTE_ENDS = "\x1b[200~", "\x1b[201~"
_ENTER = ("\r", "\n")
_ALT_ENTER = ("\x1b\r", "\x1b\n")
_ERASE, _ERASE_ALL = ("\x7f", "\b"), "\x15"  # backspace, Ctrl-U
_KEY = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[ -~]|[^\[O])|[^\x1b]", re.DOTALL)


class TypedAhead:
    """Collects a terminal's bytes to messages as the prompt would. No I/O.

    Enter ends a message, but not within a paste.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._undecided = ""  # the start of a key whose other bytes have yet to come
        self._draft = ""
        self.pasting = False

    def feed(self, typed: bytes) -> list[str]:
        """Take bytes in chunks of any size; returns the messages that were ended by Enter."""
        text = self._undecided + self._decoder.decode(typed)
        position, ended = 0, []
        while key := _KEY.match(text, position):
            position = key.end()
            if not self.pasting and key[0] in _ENTER:
                ended.append(self.take_draft())
            else:
                self._press(key[0])
        self._undecided = text[position:]
        return ended

    def take_draft(self) -> str:
        """Return the text that Enter has not yet ended, and forget it."""
        draft, self._draft = self._draft, ""
        return draft

    def _press(self, key: str) -> None:
        if key in (_PASTE_BEGINS, _PASTE_ENDS):
            self.pasting = key == _PASTE_BEGINS
        elif key in _ENTER or key in _ALT_ENTER:
            self._draft += "\n"
        elif self.pasting or key.isprintable():
            self._draft += key
        elif key in _ERASE:
            self._draft = self._draft[:-1]
        elif key == _ERASE_ALL:
            self._draft = ""


def history_file() -> Path:
    """Path of the history, which may not exist."""
    return config_folder() / "chat_history"


class ChatHistory:
    """One JSON string per line, since a message may have several lines.

    A file that can't be read or written is no error: the chat then has no history.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> list[str]:
        """Return the latest messages, oldest first, and drop older ones from the file."""
        try:
            lines = self._path.read_bytes().splitlines()
        except OSError:
            return []
        if len(lines) > MAX_ENTRIES:
            lines = lines[-MAX_ENTRIES:]
            self._write(b"\n".join(lines) + b"\n", os.O_TRUNC)
        return [text for line in lines if (text := _entry(line))]

    def add(self, text: str) -> None:
        """Append one message."""
        self._write(json.dumps(text).encode() + b"\n", os.O_APPEND)

    def _write(self, data: bytes, how: int) -> None:
        folder = self._path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | how, 0o600)
            try:
                os.write(file, data)
            finally:
                os.close(file)
        except OSError:
            return


def _entry(line: bytes) -> str:
    try:
        found = json.loads(line)
    except ValueError:
        return ""
    return found if isinstance(found, str) else ""
