"""Collections of garbage look at what is new; nothing that is unreachable stays for ever."""

import gc
import weakref

import pytest

from engine.heap import ShortPauses
from tests.fakes.fake_clock import FakeClock


class Node:
    """May be part of a circle."""


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def pauses(clock):
    pauses = ShortPauses(everything_every_s=100.0, clock=clock)
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


def test_at_the_end_everything_is_looked_at_again() -> None:
    pauses = ShortPauses()
    pauses.begin()
    gc.collect()
    assert gc.get_freeze_count() > 0
    pauses.end()
    assert gc.get_freeze_count() == 0
    assert pauses._note not in gc.callbacks
