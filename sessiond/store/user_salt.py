"""A user's salt: secret, random, never changed."""

import secrets

_BYTES = 32


def new_salt() -> bytes:
    """A new random salt."""
    return secrets.token_bytes(_BYTES)
