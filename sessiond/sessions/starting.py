"""A user's turns between the check of its quota and commit 1. Asyncio thread only."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from sessiond.quota import Account, Quota, QuotaUse, Wanted

_UNKNOWN = Account(quota=Quota(), use=QuotaUse())


@dataclass(slots=True)
class UserStarts:
    """A user's turns that start: `turns` of them, which open `sessions` sessions.

    Each check and each commit 1 of the user holds `lock`, so that a turn is counted here or in SQL,
    never in both. `account`: as of the last check or commit.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    turns: int = 0
    sessions: int = 0
    account: Account = _UNKNOWN

    def add(self, wanted: Wanted) -> None:
        """Count one more turn."""
        self.turns += wanted.turns
        self.sessions += wanted.sessions

    def remove(self, wanted: Wanted) -> None:
        """Count a turn no more."""
        self.turns -= wanted.turns
        self.sessions -= wanted.sessions

    def with_starting(self, account: Account) -> Account:
        """The account as if all turns that start were stored."""
        use = account.use
        turns, sessions = use.turns + self.turns, use.sessions + self.sessions
        return replace(account, use=replace(use, turns=turns, sessions=sessions))


class StartingTurns:
    """The starting turns of all users."""

    def __init__(self) -> None:
        self._of_users: dict[str, UserStarts] = {}
        self._references: dict[str, int] = {}

    @contextmanager
    def of(self, user_id: str) -> Iterator[UserStarts]:
        """A user's starting turns; forgotten when nothing uses them."""
        starts = self._of_users.setdefault(user_id, UserStarts())
        self._references[user_id] = self._references.get(user_id, 0) + 1
        try:
            yield starts
        finally:
            self._references[user_id] -= 1
            if not self._references[user_id]:
                del self._references[user_id], self._of_users[user_id]
