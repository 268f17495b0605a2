"""Digests of message list prefixes, to find a stored context by its messages. Pure.

A client that resends its history sends equal texts and roles in equal order. A stored context
is found by the digest of its messages, without rendering.
"""

import hashlib
from collections.abc import Iterable, Sequence

from sessiond.facts import InputItem

EMPTY = ""


def extended(digest: str, role: str, text: str) -> str:
    """The digest extended by one message."""
    hasher = hashlib.sha256(digest.encode())
    for part in (role.encode(), text.encode()):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.hexdigest()


def with_items(digest: str | None, items: Iterable[InputItem]) -> str | None:
    """The digest extended by items; None stays None."""
    for item in items:
        digest = None if digest is None else extended(digest, item.role, item.text)
    return digest


def of_front(text: str | None, opening_text: str | None) -> str:
    """Digest of a system prefix: instructions, then the opening system message."""
    digest = EMPTY
    for part in (text, opening_text):
        if part is not None:
            digest = extended(digest, "system", part)
    return digest


def of_prefixes(messages: Sequence[InputItem]) -> list[str]:
    """Number i is that of the first i + 1 messages. One that opens a chat says what rules it."""
    digest, found = EMPTY, []
    for index, item in enumerate(messages):
        opens = index == 0 and item.role in {"system", "developer"}
        digest = extended(digest, "system" if opens else item.role, item.text)
        found.append(digest)
    return found
