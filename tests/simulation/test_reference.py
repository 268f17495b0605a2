"""FIFO, dead-block LRU and Belady: by hand, and Belady against trying everything."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.simulation.reference import hits_of
from engine.simulation.trace import Request
from tests.simulation.requests import requests


def test_fifo_does_not_care_for_hits() -> None:
    # 1 and 2 are there, 1 hits, 3 pushes out 1 (it came first), so that 1 misses
    assert hits_of("fifo", requests("a1", "b2", "a1", "c3", "a1"), 2) == 1


def test_the_deepest_block_of_a_request_goes_first() -> None:
    # 3 takes the place of 2: then 1 hits and 2 does not
    assert hits_of("fifo", requests("a12", "b3", "a12"), 2) == 1


def test_dead_blocks_make_room() -> None:
    # 2 and 3 are never read again: 1 stays
    assert hits_of("dead_block_lru", requests("a1", "b2", "c3", "a1"), 1) == 1


def test_belady_lets_pass_what_is_not_needed_soon() -> None:
    assert hits_of("belady", requests("a1", "b2", "a1", "b2", "a1"), 1) == 2


def most_hits(lookups: list[int], capacity: int) -> int:
    """By trying all sets that can be kept."""
    states = {frozenset(): 0}
    for block in lookups:
        after: dict[frozenset[int], int] = {}
        for kept, hits in states.items():
            now = hits + (block in kept)
            there = kept | {block}
            options = [kept, there - {block}, *(there - {other} for other in there)]
            options += [there] if len(there) <= capacity else []
            for option in options:
                if len(option) <= capacity:
                    after[option] = max(after.get(option, 0), now)
        states = after
    return max(states.values())


@settings(derandomize=True, deadline=None)
@given(
    lookups=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True), max_size=6),
    capacity=st.integers(1, 3),
)
def test_belady_is_the_best_there_is(lookups: list[list[int]], capacity: int) -> None:
    asked = [
        Request(at_s=at, session=str(at), blocks=blocks, known_blocks=0, new_tokens=0)
        for at, blocks in enumerate(lookups)
    ]
    flat = [block for blocks in lookups for block in blocks]
    assert hits_of("belady", asked, capacity) == most_hits(flat, capacity)
