"""The messages typed in earlier chats, in a file that only the user can read."""

import json
import os
from pathlib import Path

from sessiond.settings import config_folder

MAX_ENTRIES = 1000


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
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
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
