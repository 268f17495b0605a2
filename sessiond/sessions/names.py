"""Conversation names chosen by users. Pure.

The session id is derived from the user and the name, so equal names of two users are two
conversations, and no lookup is needed.
"""

import hashlib
import re

OWN_ID_PREFIX = "conv_"
MAX_NAME = 64
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def is_name(text: str) -> bool:
    """Whether the text is a valid conversation name."""
    return _NAME.fullmatch(text) is not None and not text.startswith(OWN_ID_PREFIX)


def session_id_of(user_id: str, given: str) -> str:
    """The id of the session that a user means."""
    if not is_name(given):
        return given
    digest = hashlib.sha256(f"{user_id}\0{given}".encode())
    return f"{OWN_ID_PREFIX}named_{digest.hexdigest()[:32]}"
