"""Where the server's log goes: standard error, one line each."""

import logging

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
# uvicorn says this of every denied upgrade, although its response was complete
_SPURIOUS = "ASGI callable returned without completing handshake."


def configure_logs() -> None:
    """Log warnings of libraries and everything notable of ours to standard error."""
    logging.basicConfig(level=logging.WARNING, format=_FORMAT)
    for name in ("sessiond", "engine"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").addFilter(lambda record: record.getMessage() != _SPURIOUS)
