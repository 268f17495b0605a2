"""Errors of the store. No SQLAlchemy error leaves the package."""

import re

from sessiond.quota import Account, Wanted

_PASSWORD = re.compile("//([^:@/]*):.*@")  # also in a URL that can't be parsed


class StoreError(Exception):
    """The database failed a transaction; nothing of it was written."""


class StoreConfigError(StoreError):
    """The database URL is not usable."""

    def __init__(self, url: str, allowed: str) -> None:
        shown = _PASSWORD.sub(r"//\1:[removed]@", url)
        super().__init__(f"db must be {allowed} (got {shown!r})")
        self.url = url


class StaleSessionError(StoreError):
    """The session is closed, or another writer has moved its tip."""


class QuotaExceededError(StoreError):
    """The reservation exceeds the remaining quota of the user; nothing was taken."""

    def __init__(self, user_id: str, account: Account, wanted: Wanted) -> None:
        super().__init__(f"{wanted} is more than the quota of user {user_id} has left")
        self.account = account
        self.wanted = wanted


class BaseGoneError(StoreError):
    """The base of the new session was deleted meanwhile; nothing was written."""


class NotOwnerError(StaleSessionError):
    """The session is closed, or another replica has claimed it."""
