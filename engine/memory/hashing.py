"""Chain keys of full blocks: what a block's KV depends on, in 32 bytes. Pure.

The key of block i is SHA-256 over the extras, the key of block i - 1 and the block's token ids,
so equal keys mean equal prefixes. A wide hash: with a narrow one a user could be served
the KV of another's text.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

ROOT = bytes(32)
"""Parent key of a first block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyExtras:
    """What KV depends on beside token ids.

    `fingerprint`: model version, kernel path and dtype. `adapter`: digest of the adapter's
    contents. `salt`: the tenant's. `lineage`: hash of the edit log; empty before any edit, since a
    block computed after a hole must not be found under the plain chain.
    """

    fingerprint: str
    salt: bytes
    adapter: bytes = b""
    lineage: bytes = b""


@lru_cache(maxsize=4096)
def owner_id(salt: bytes) -> bytes:
    """Eight bytes that tell owners apart where their salt shall not lie."""
    return hashlib.sha256(b"owner" + salt).digest()[:8]


class ChainHasher:
    """Makes chain keys under one set of extras."""

    def __init__(self, extras: KeyExtras) -> None:
        self._extras = extras
        self._seeded = hashlib.sha256()
        for field in (extras.fingerprint.encode(), extras.adapter, extras.salt, extras.lineage):
            # Length-prefixed: ("ab", "c") and ("a", "bc") must differ.
            self._seeded.update(struct.pack("<Q", len(field)) + field)

    @property
    def lineage(self) -> bytes:
        """The hash of the edits that keys are made under; empty: there were none."""
        return self._extras.lineage

    def under(self, lineage: bytes) -> "ChainHasher":
        """The same under another lineage."""
        return ChainHasher(replace(self._extras, lineage=lineage))

    def key(self, parent: bytes, ids: Sequence[int], base: int | None = None) -> bytes:
        """Key of the block that holds `ids` and whose predecessor has the key `parent`.

        `base`: the position of its first slot, where K is no good at another one.
        """
        digest = self._seeded.copy()
        if base is not None:
            digest.update(struct.pack("<Q", base))
        digest.update(parent + struct.pack(f"<{len(ids)}I", *ids))
        return digest.digest()
