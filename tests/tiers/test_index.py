"""Slots of a tier: none is lost, none is two keys', whatever is being moved."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.kv.tiers.index import NotInTransfer, SlotIndex
from engine.kv.tiers.store import Label

KEYS = st.sampled_from([bytes([number]) for number in range(9)])
LIMITS = st.sampled_from([None, None, 0, 1, 2])


def owner_of(key: bytes) -> bytes:
    return b"even" if key[0] % 2 == 0 else b"odd"


def label(key: bytes) -> Label:
    return Label(key, owner_of(key))


CAPACITY = 4


class Machine(RuleBasedStateMachine):
    """Against a plain model: who is here in order of use, who is written, who is read."""

    def __init__(self) -> None:
        super().__init__()
        self.index = SlotIndex(CAPACITY)
        self.here: list[bytes] = []
        self.writing: set[bytes] = set()
        self.readers: dict[bytes, int] = {}

    @rule(key=KEYS, most=LIMITS)
    def claim(self, key: bytes, most: int | None) -> None:
        slot = self.index.claim(label(key), most)
        if key in self.here or key in self.writing or key in self.readers:
            assert slot is None
            return
        if most is not None and not self.make_room_of_owner(key, most):
            assert slot is None
            return
        dropped = [key for key in self.readers if key not in self.here]
        if len(self.here) + len(self.writing) + len(dropped) == CAPACITY:
            idle = [key for key in self.here if key not in self.readers]
            if not idle:
                assert slot is None
                return
            self.here.remove(idle[0])
        assert slot is not None
        self.writing.add(key)

    def make_room_of_owner(self, key: bytes, most: int) -> bool:
        def own() -> list[bytes]:
            return [k for k in (*self.here, *self.writing) if owner_of(k) == owner_of(key)]

        while len(own()) >= most:
            idle = [k for k in self.here if k in own() and k not in self.readers]
            if not idle:
                return False
            self.here.remove(idle[0])
        return True

    @rule(key=KEYS, good=st.booleans())
    def finish_write(self, key: bytes, good: bool) -> None:
        if key not in self.writing:
            with pytest.raises(NotInTransfer):
                self.index.finish_write(key, good=good)
            return
        self.index.finish_write(key, good=good)
        self.writing.remove(key)
        if good:
            self.here.append(key)

    @rule(key=KEYS)
    def begin_read(self, key: bytes) -> None:
        if key in self.here:
            self.index.begin_read(key)
            self.here.remove(key)
            self.here.append(key)
            self.readers[key] = self.readers.get(key, 0) + 1

    @rule(key=KEYS)
    def finish_read(self, key: bytes) -> None:
        if key not in self.readers:
            with pytest.raises(NotInTransfer):
                self.index.finish_read(key)
            return
        freed = self.index.finish_read(key)
        self.readers[key] -= 1
        assert (freed is not None) == (not self.readers[key] and key not in self.here)
        if not self.readers[key]:
            del self.readers[key]

    @rule(key=KEYS)
    def drop(self, key: bytes) -> None:
        if key in self.readers and key not in self.here:
            return  # dropped already, and still read
        slot = self.index.drop(key)
        assert (slot is not None) == (key in self.here and key not in self.readers)
        if key in self.here:
            self.here.remove(key)

    @invariant()
    def agrees(self) -> None:
        assert list(self.index) == self.here
        assert list(self.index.violations()) == []
        for owner in (b"even", b"odd"):
            own = [key for key in (*self.here, *self.writing) if owner_of(key) == owner]
            assert self.index.blocks_of(owner) == len(own)
        assert self.index.in_transfer == len(self.writing) + sum(self.readers.values())


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestIndex = Machine.TestCase


def test_what_lay_there_is_taken_over_oldest_first() -> None:
    index = SlotIndex(3)
    index.fill({2: label(b"a"), 0: label(b"b")})
    assert index.claim(label(b"c")) == 1
    assert index.claim(label(b"d")) == 2, "a's, which is the oldest"
    assert b"a" not in index


def test_damage_is_named() -> None:
    index = SlotIndex(3)
    index._free.append(5)  # noqa: SLF001 -- damage on purpose
    assert list(index.violations())
    index = SlotIndex(3)
    index._free.append(0)  # noqa: SLF001 -- damage on purpose
    assert list(index.violations()) == ["slot 0 is in 2 places"]


def test_an_owners_oldest_is_the_one_that_was_there_first_whichever_was_claimed_first() -> None:
    index = SlotIndex(4)
    first, second, third = (Label(bytes([number]), b"one") for number in range(3))
    for one in (first, second):
        index.claim(one)
    for one in (second, first):
        index.finish_write(one.key, good=True)
    index.claim(third, most=2)
    assert list(index) == [first.key]
