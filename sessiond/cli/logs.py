"""Configures the log: standard error, one line per record, without keys or users' texts."""

import logging
import re

from sessiond.api_keys import without_keys

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
# uvicorn logs this for every denied upgrade, although the response was complete
_SPURIOUS = "ASGI callable returned without completing handshake."
# below this level these libraries log frames, headers and rows
_TALKATIVE = ("aiosqlite", "httpcore", "httpx", "psycopg", "sqlalchemy", "uvicorn", "websockets")
_DETAIL = re.compile(r"^DETAIL:.*$", re.MULTILINE)


class KeylessFormatter(logging.Formatter):
    """Removes keys and rows quoted by a database from records, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record; a filter would run before its traceback is formatted."""
        return _DETAIL.sub("DETAIL: [removed]", without_keys(super().format(record)))


def configure_logs() -> None:
    """Log warnings of libraries and this program's info records to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(KeylessFormatter(_FORMAT))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    quiet_libraries()
    for name in ("sessiond", "engine"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").addFilter(lambda record: record.getMessage() != _SPURIOUS)


def quiet_libraries() -> None:
    """Restrict libraries that would log users' texts to warnings, whatever the root level."""
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
