"""What tells whether a context says the same as a list of messages: one digest per prefix. Pure.

A client that resends its history sends what it was sent: equal texts in equal order, under equal
roles. So a stored context is found by the digest of all that was said in it; nothing is rendered.
"""

import hashlib
from collections.abc import Iterable, Sequence

from sessiond.facts import InputItem

EMPTY = ""


def extended(digest: str, role: str, text: str) -> str:
    """The digest with one more message behind it."""
    hasher = hashlib.sha256(digest.encode())
    for part in (role.encode(), text.encode()):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.hexdigest()


def with_items(digest: str | None, items: Iterable[InputItem]) -> str | None:
    """The digest with these behind it; of what has none it is none."""
    for item in items:
        digest = None if digest is None else extended(digest, item.role, item.text)
    return digest


def of_front(text: str | None, opening_text: str | None) -> str:
    """That of a context's front: instructions, then a system message that opened it."""
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
