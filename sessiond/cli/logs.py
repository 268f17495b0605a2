"""Where the server's log goes: standard error, one line each, never with a key or what was said."""

import logging
import re

from sessiond.api_keys import without_keys

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
# uvicorn says this of every denied upgrade, although its response was complete
_SPURIOUS = "ASGI callable returned without completing handshake."
# what they log below this level are frames, headers and rows
_TALKATIVE = ("aiosqlite", "httpcore", "httpx", "psycopg", "sqlalchemy", "uvicorn", "websockets")
_DETAIL = re.compile(r"^DETAIL:.*$", re.MULTILINE)


class KeylessFormatter(logging.Formatter):
    """Takes keys out of what is written, and rows that a database quotes; tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record; a filter would see it before its traceback is text."""
        return _DETAIL.sub("DETAIL: [removed]", without_keys(super().format(record)))


def configure_logs() -> None:
    """Log warnings of libraries and everything notable of ours to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(KeylessFormatter(_FORMAT))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    quiet_libraries()
    for name in ("sessiond", "engine"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").addFilter(lambda record: record.getMessage() != _SPURIOUS)


def quiet_libraries() -> None:
    """Have libraries that would log what people say log warnings only, whatever the root does."""
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
