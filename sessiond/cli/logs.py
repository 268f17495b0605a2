"""Where the server's log goes: standard error, one line each, and never with an API key."""

import logging

from sessiond.api_keys import without_keys

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
# uvicorn says this of every denied upgrade, although its response was complete
_SPURIOUS = "ASGI callable returned without completing handshake."


class KeylessFormatter(logging.Formatter):
    """Takes keys out of what is written, arguments and tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record; a filter would see it before its traceback is text."""
        return without_keys(super().format(record))


def configure_logs() -> None:
    """Log warnings of libraries and everything notable of ours to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(KeylessFormatter(_FORMAT))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    for name in ("sessiond", "engine"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").addFilter(lambda record: record.getMessage() != _SPURIOUS)
