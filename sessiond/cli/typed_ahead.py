"""What is typed while a reply streams, from the raw bytes of a terminal. No I/O."""

import codecs
import re

PASTES_MARKED = "\x1b[?2004h"
"""Makes a terminal mark where a pasted text begins and ends (bracketed paste)."""
PASTES_UNMARKED = "\x1b[?2004l"

_PASTE_BEGINS, _PASTE_ENDS = "\x1b[200~", "\x1b[201~"
_ENTER = ("\r", "\n")
_ALT_ENTER = ("\x1b\r", "\x1b\n")
_ERASE, _ERASE_ALL = ("\x7f", "\b"), "\x15"  # backspace, Ctrl-U
_KEY = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[ -~]|[^\[O])|[^\x1b]", re.DOTALL)


class TypedAhead:
    """Collects keys to messages, as the prompt would: Enter ends one, but not within a paste."""

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
