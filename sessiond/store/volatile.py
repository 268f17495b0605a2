"""Which ids are those of sessions that live in memory only (`store: false`). Pure."""

_MARK = "_mem"


def volatile_prefix(prefix: str) -> str:
    """The prefix of a volatile id: `conv` gives `conv_mem`."""
    return prefix + _MARK


def is_volatile(some_id: str | None) -> bool:
    """Whether a session's, turn's or front's id is that of one which is never written down."""
    return some_id is not None and f"{_MARK}_" in some_id
