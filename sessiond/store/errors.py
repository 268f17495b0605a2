"""What the store raises. Nothing of SQLAlchemy leaves the package."""

import re

from sessiond.quota import Account, Wanted

_PASSWORD = re.compile("//([^:@/]*):.*@")  # also where the URL can't be taken apart


class StoreError(Exception):
    """The database did not do what it was asked to; nothing of it was written."""


class StoreConfigError(StoreError):
    """The database's URL can't work."""

    def __init__(self, url: str, allowed: str) -> None:
        shown = _PASSWORD.sub(r"//\1:[removed]@", url)
        super().__init__(f"db={shown!r}: allowed is {allowed}")
        self.url = url


class StaleSessionError(StoreError):
    """A session is not where the writer believed: closed, or moved on by someone else."""


class QuotaExceededError(StoreError):
    """A user has not enough left of what was to be taken; nothing was."""

    def __init__(self, user_id: str, account: Account, wanted: Wanted) -> None:
        super().__init__(f"{wanted} is more than the quota of user {user_id} has left")
        self.account = account
        self.wanted = wanted


class BaseGoneError(StoreError):
    """What a new session was to be built on was deleted meanwhile; nothing was written."""


class NotOwnerError(StaleSessionError):
    """The session is closed, or another replica has taken it since the writer did."""
