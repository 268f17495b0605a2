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


def session_id_of(user_id: str, id_or_name: str) -> str:
    """The session id for a conversation id or name."""
    if not is_name(id_or_name):
        return id_or_name
    digest = hashlib.sha256(f"{user_id}\0{id_or_name}".encode())
    return f"{OWN_ID_PREFIX}named_{digest.hexdigest()[:32]}"
