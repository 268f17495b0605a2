"""What the store raises. Nothing of SQLAlchemy leaves the package."""


class StoreError(Exception):
    """The database did not do what it was asked to; nothing of it was written."""


class StoreConfigError(StoreError):
    """The database's URL can't work."""

    def __init__(self, url: str, allowed: str) -> None:
        super().__init__(f"db={url!r}: allowed is {allowed}")
        self.url = url


class StaleSessionError(StoreError):
    """A session is not where the writer believed: closed, or moved on by someone else."""


class NotOwnerError(StaleSessionError):
    """The session is closed, or another replica has taken it since the writer did."""
