"""Index of a tier: which slot holds the block of which key, in LRU order. Pure.

A slot that is being written is not found yet, and one that is being read is not reused. Each key
has an owner, whose blocks can be limited. At the limit the owner's oldest blocks are dropped.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator

from engine.errors import Corruption
from engine.kv.tiers.store import Label


class NotInTransfer(Corruption):
    """A transfer that had not begun was reported as finished."""

    def __init__(self, key: bytes) -> None:
        super().__init__(f"no transfer of block {key.hex()[:16]} has begun")
        self.key = key


class SlotIndex:
    """The slots 0 to `capacity` - 1 of one tier. Loop thread only.

    `on_change` is called with each key that is added or removed.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.on_change: Callable[[bytes], None] = lambda _key: None
        self._slot_of: OrderedDict[bytes, int] = OrderedDict()
        self._writing: dict[bytes, int] = {}
        self._owner_of: dict[bytes, bytes] = {}
        self._owned: dict[bytes, OrderedDict[bytes, None]] = {}  # those being written, too
        self._readers: Counter[bytes] = Counter()
        self._dropped: dict[bytes, int] = {}  # number of readers of dropped slots
        self._free = list(
            range(capacity - 1, -1, -1)
        )  # a stack: consecutive writes take neighbours

    def __len__(self) -> int:
        return len(self._slot_of)

    def __contains__(self, key: bytes) -> bool:
        return key in self._slot_of

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._slot_of)

    def is_written(self, key: bytes) -> bool:
        """Whether the key is here, or being written."""
        return key in self._slot_of or key in self._writing

    def owner_of(self, key: bytes) -> bytes:
        """Owner of a key that is here, or being written."""
        return self._owner_of[key]

    def blocks_of(self, owner: bytes) -> int:
        """Number of an owner's blocks here, or being written."""
        return len(self._owned.get(owner, ()))

    def fill(self, label_of: dict[int, Label]) -> None:
        """Load the existing contents of the slots, least recently used first."""
        for slot, label in label_of.items():
            self._slot_of[label.key] = slot
            self._own(label)
        self._free = [slot for slot in self._free if slot not in label_of]

    @property
    def is_full(self) -> bool:
        """Whether the next claim has to drop a block."""
        return not self._free

    def claim(
        self, label: Label, most: int | None = None, keep: Container[bytes] = ()
    ) -> int | None:
        """Return a slot to write a block to: a free one, or the least recently used.

        `most`: limit of its owner's blocks; at the limit the owner's oldest block is dropped.
        `keep`: keys that are not dropped. None: the key is here, being written, or dropped and
        still read, or every block that could be dropped is in transfer.
        """
        if self.is_written(label.key) or label.key in self._dropped:
            return None
        while most is not None and self.blocks_of(label.owner) >= most:
            if not self._evict(self._owned.get(label.owner, ()), keep):
                return None
        if not self._free and not self._evict(self._slot_of, keep):
            return None
        slot = self._free.pop()
        self._writing[label.key] = slot
        self._own(label)
        return slot

    def finish_write(self, key: bytes, *, good: bool) -> None:
        """Record that a write has ended; `good`: the block is stored in its slot.

        Raises:
            NotInTransfer: no slot was claimed for it.
        """
        if key not in self._writing:
            raise NotInTransfer(key)
        slot = self._writing.pop(key)
        if good:
            self._slot_of[key] = slot
            self._owned[self._owner_of[key]].move_to_end(key)  # in the order of `_slot_of`
            self.on_change(key)
        else:
            self._free.append(slot)
            self._disown(key)

    def begin_read(self, key: bytes) -> int:
        """Return the slot of a key that is here; it is kept until `finish_read`."""
        self._slot_of.move_to_end(key)
        self._owned[self._owner_of[key]].move_to_end(key)
        self._readers[key] += 1
        return self._slot_of[key]

    def finish_read(self, key: bytes) -> int | None:
        """Record that a read has ended; return the slot if it was dropped and is now free.

        Raises:
            NotInTransfer: it was not being read.
        """
        if not self._readers[key]:
            raise NotInTransfer(key)
        self._readers[key] -= 1
        if self._readers[key]:
            return None
        del self._readers[key]
        return self._freed(self._dropped.pop(key, None))

    def drop(self, key: bytes) -> int | None:
        """Remove a key; return its slot if it is free now. None if unknown, or still read."""
        slot = self._slot_of.pop(key, None)
        if slot is not None:
            self._disown(key)
            self.on_change(key)
        if slot is not None and self._readers[key]:
            self._dropped[key] = slot
            return None
        return self._freed(slot)

    def _freed(self, slot: int | None) -> int | None:
        if slot is not None:
            self._free.append(slot)
        return slot

    def violations(self) -> Iterator[str]:
        """Yield every slot that is not in exactly one place. For audits."""
        found = Counter(self._free)
        for slots in (self._slot_of, self._writing, self._dropped):
            found.update(slots.values())
        for slot in range(self.capacity):
            if found[slot] != 1:
                yield f"slot {slot} is in {found[slot]} places"
        if len(found) > self.capacity:
            yield f"slots must be {self.capacity} (got {len(found)})"
        if self._owner_of.keys() != self._slot_of.keys() | self._writing.keys():
            yield "a key has no owner, or an owner's key is missing"
        if sum(map(len, self._owned.values())) != len(self._owner_of):
            yield "a key differs from its owner's"

    @property
    def in_transfer(self) -> int:
        """Number of transfers in flight."""
        return len(self._writing) + self._readers.total()

    def _evict(self, keys: Iterable[bytes], keep: Container[bytes]) -> bool:
        """Drop the first of the keys that is neither kept nor in transfer; False: there is none."""
        for key in keys:
            if key in self._slot_of and key not in keep and not self._readers[key]:
                self.drop(key)
                return True
        return False

    def _own(self, label: Label) -> None:
        self._owner_of[label.key] = label.owner
        self._owned.setdefault(label.owner, OrderedDict())[label.key] = None

    def _disown(self, key: bytes) -> None:
        owned = self._owned[owner := self._owner_of.pop(key)]
        del owned[key]
        if not owned:
            del self._owned[owner]
