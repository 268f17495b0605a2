"""Collections of garbage look at what is new; nothing that is unreachable stays for ever."""

import contextlib
import gc
import weakref

import pytest

from engine.system.heap import ShortPauses
from tests.fakes.fake_clock import FakeClock


class Node:
    """May be part of a circle."""


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def pauses(clock):
    with kept_short(few=0, everything_every_s=100.0, clock=clock) as pauses:
        yield pauses


@contextlib.contextmanager
def kept_short(**options):
    pauses = ShortPauses(**options)
    gc.collect()
    pauses.begin()
    yield pauses
    pauses.end()


@pytest.mark.usefixtures("pauses")
def test_what_survived_a_collection_is_not_looked_at_again() -> None:
    live = [Node() for _ in range(20_000)]
    gc.collect()
    assert len(gc.get_objects(generation=2)) < 1000
    later = [Node() for _ in range(3000)]
    gc.collect(1)
    assert 3000 <= len(gc.get_objects(generation=2)) < 5000
    del live, later


@pytest.mark.usefixtures("pauses")
def test_what_survived_and_is_in_no_circle_is_freed_at_once() -> None:
    node = Node()
    gc.collect()
    gone = weakref.ref(node)
    del node
    assert gone() is None


@pytest.mark.usefixtures("pauses")
def test_a_circle_that_survived_is_freed_when_everything_is_looked_at(clock: FakeClock) -> None:
    node = Node()
    node.itself = node
    gone = weakref.ref(node)
    gc.collect()
    del node
    gc.collect()
    assert gone() is not None
    clock.advance(100)
    gc.collect()
    gc.collect()
    assert gone() is None


def test_circles_of_few_objects_that_survived_are_freed_by_the_next_collection() -> None:
    """Of each collection's turns and sockets some are in circles: they must not add up."""
    gone = []
    with kept_short():
        gc.collect()  # all that other tests have left is many
        frozen = gc.get_freeze_count()
        for _ in range(50):
            nodes = [Node() for _ in range(100)]
            for node in nodes:
                node.itself = node
            gone.append(weakref.ref(nodes[0]))
            gc.collect()
            del nodes, node
        gc.collect()
        assert gc.get_freeze_count() <= frozen
    assert [node() for node in gone] == [None] * 50


def test_at_the_end_everything_is_looked_at_again() -> None:
    before, pauses = list(gc.callbacks), ShortPauses()
    pauses.begin()
    gc.collect()
    assert gc.get_freeze_count() > 0
    pauses.end()
    assert gc.get_freeze_count() == 0
    assert gc.callbacks == before
