"""Ids of sessions held in memory only (`store: false`). Pure."""

_MARK = "_mem"


def volatile_prefix(prefix: str) -> str:
    """The prefix of a volatile id: `conv_mem` for `conv`."""
    return prefix + _MARK


def is_volatile(some_id: str | None) -> bool:
    """Whether an id of a session, turn or system prefix is volatile."""
    return some_id is not None and f"{_MARK}_" in some_id
