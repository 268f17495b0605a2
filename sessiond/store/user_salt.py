"""A user's salt: secret, random, kept as long as the user exists."""

import secrets

_BYTES = 32


def new_salt() -> bytes:
    """A salt that no other user has."""
    return secrets.token_bytes(_BYTES)
