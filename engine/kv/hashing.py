"""Chain keys of full blocks: a hash of everything that a block's KV depends on. Pure.

The key of block i is SHA-256 over the extras, the key of block i - 1 and the block's token ids, so
equal keys mean equal prefixes. The hash is wide: collisions of a narrow one could serve a user the
KV of another's text.
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
    """Inputs of KV beside token ids.

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
    """Return eight bytes that identify an owner where its salt must not be stored."""
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
        """Hash of the edits that keys are made under; empty without edits."""
        return self._extras.lineage

    def under(self, lineage: bytes) -> "ChainHasher":
        """Return the same hasher under another lineage."""
        return ChainHasher(replace(self._extras, lineage=lineage))

    def key(self, parent: bytes, ids: Sequence[int], base: int | None = None) -> bytes:
        """Key of the block that holds `ids` and whose predecessor has the key `parent`.

        `base`: position of its first slot, where K is valid at that position only.
        """
        digest = self._seeded.copy()
        if base is not None:
            digest.update(struct.pack("<Q", base))
        digest.update(parent + struct.pack(f"<{len(ids)}I", *ids))
        return digest.digest()
