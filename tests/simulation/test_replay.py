"""The real pool on traces small enough to follow by hand; its memory adds up afterwards."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kv.auditor import audit
from engine.simulation.hints import Hints, cuts
from engine.simulation.reference import hits_of
from engine.simulation.replay import TraceReplay, replay
from engine.simulation.synthetic import SyntheticSessions
from engine.simulation.trace import Request
from policies.registry import BUILT_IN, placement_policy
from tests.simulation.requests import request, requests


def stats(policy: str, capacity: int, asked: list[Request], hints: Hints | None = None):
    said = cuts(asked, hints) if hints else {}
    return replay(asked, placement_policy(policy), capacity, said)


def test_what_was_used_longest_ago_is_gone() -> None:
    # c takes b's place (a was used later): then a hits both blocks, b none
    result = stats("lru", 4, requests("b12", "a34", "a34", "c56", "a34", "b12"))
    assert (result.hits, result.lookups, result.evictions) == (4, 12, 2)


def test_a_prefix_that_another_session_holds_is_hit() -> None:
    assert stats("lru", 8, requests("a123", "b124")).hits == 2


def test_a_released_session_is_hit_until_its_blocks_are_taken_deepest_first() -> None:
    # c needs one block: a gives way, and only its last block is taken
    assert stats("lru", 4, requests("a123", "b4", "c5", "a123")).hits == 2


def test_blocks_that_had_been_there_count_as_moved_back() -> None:
    asked = [
        Request(at_s=at, session=name, blocks=[ord(name)], known_blocks=known, new_tokens=9)
        for at, (name, known) in enumerate([("a", 0), ("b", 0), ("a", 1)])
    ]
    assert stats("lru", 1, asked).returned_blocks == 1
    assert stats("lru", 2, asked).returned_blocks == 0


def test_a_prompt_larger_than_the_pool_is_refused_and_the_others_go_on() -> None:
    result = stats("lru", 3, requests("a1", "b23456", "a1"))
    assert (result.refused, result.requests) == (1, 3)


def test_first_turns_give_way_to_long_chats_under_cost_aware() -> None:
    asked = [request(60 * at, "chat", [1, *range(2, 2 + at)]) for at in range(1, 5)]
    asked += [request(245 + 3 * at, f"visit{at}", [100 + at]) for at in range(8)]
    asked += [request(300, "chat", [1, 2, 3, 4, 5, 6])]
    assert stats("lru", 8, asked).hits < stats("cost_aware", 8, asked).hits


def test_a_session_that_closes_makes_room() -> None:
    asked = requests("a1", "b2", "c3", "a1")
    assert stats("lru", 1, asked).hits == 0
    assert stats("lru", 1, asked, Hints.DEAD).hits == 0, "b and c still need a place"
    assert stats("lru", 2, asked, Hints.DEAD).hits == 1


PROMPTS = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True),
    ),
    max_size=25,
)


@settings(derandomize=True, deadline=None)
@given(prompts=PROMPTS, capacity=st.integers(4, 9), hints=st.sampled_from([None, *Hints]))
@pytest.mark.parametrize("policy", sorted(BUILT_IN))
def test_memory_adds_up_and_nobody_beats_belady(policy, prompts, capacity, hints) -> None:
    # equal ids must mean an equal prefix: a block's id is its whole path
    paths = [[hash(tuple(blocks[: i + 1])) % 2**32 for i in range(len(blocks))]
             for _, blocks in prompts]  # fmt: skip
    asked = [request(at, name, path) for at, ((name, _), path) in
             enumerate(zip(prompts, paths, strict=True))]  # fmt: skip
    said = cuts(asked, hints) if hints else {}
    run = TraceReplay(placement_policy(policy), capacity)
    for index, one in enumerate(asked):
        run.serve(one, said.get(index, ()))
    report = audit(run._memory, kv_bytes_per_block=1)  # noqa: SLF001 -- a replay has no audit
    assert report.ok, report.violations
    assert run.stats.hits <= hits_of("belady", asked, capacity)


def test_drawn_sessions_are_the_same_each_time_and_in_order() -> None:
    drawn = SyntheticSessions(count=200, seed=3)
    first = [(one.at_s, one.session, one.blocks) for one in drawn]
    assert first == [(one.at_s, one.session, one.blocks) for one in drawn]
    assert [at_s for at_s, *_ in first] == sorted(at_s for at_s, *_ in first)
    assert len({session for _, session, _ in first}) == 200


def test_sessions_silent_for_long_are_forgotten() -> None:
    """Or a million sessions would be remembered for ever."""
    asked = [request(1000 * at, f"s{at}", [at]) for at in range(100)]
    result = stats("cost_aware", 4, asked)
    assert result.most_sessions < 15
