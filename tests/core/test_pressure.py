"""Too few blocks: who gives way, who waits, and that some turn always ends."""

import pytest

from engine.ipc.messages import TurnIncomplete
from tests.fakes.fake_model import expected_reply
from tests.harness.loop import Engine


def finished(engine: Engine, turn: str, ids: list[int], limit: int) -> bool:
    return engine.kept(turn)[:-2] == expected_reply(
        ids, draw=engine.draw, max_output_tokens=limit, stop_ids=()
    )


def test_the_idle_context_used_longest_ago_is_evicted_first(make_engine) -> None:
    engine = make_engine(num_blocks=12)
    for session in "abc":
        engine.open(session)
        engine.turn(session, [ord(session)] * 40)
    engine.turn("a", [1])  # "b" is now the one used longest ago
    engine.open("d")
    engine.turn("d", [9] * 40)
    assert engine.stats().evictions_total == {"drop": 1}
    assert [engine.view(session).kept_len > 0 for session in "abcd"] == [True, False, True, True]


def test_blocks_that_nobody_refers_to_go_before_anyone_is_evicted(make_engine) -> None:
    engine = make_engine(num_blocks=12)
    for session in "ab":
        engine.open(session)
        engine.turn(session, [ord(session)] * 40)
    engine.close("a")
    engine.open("c")
    engine.turn("c", [9] * 120, max_output_tokens=2)
    assert not engine.stats().evictions_total
    assert engine.view("b").kept_len > 0


def test_the_youngest_running_turn_gives_way_and_keeps_what_it_said(make_engine) -> None:
    engine = make_engine(num_blocks=8)
    for session in "ab":
        engine.open(session)
    old = engine.submit("a", [1] * 60, max_output_tokens=40, stop_ids=[])
    young = engine.submit("b", [2] * 60, max_output_tokens=40, stop_ids=[])
    engine.step_until(lambda: engine.stats().preemptions_total > 0)
    assert engine.view("b").blocks == 0
    assert not engine.stats().evictions_total, "it was not for a policy to decide"
    said = engine.text(young)
    assert said
    engine.run()
    assert engine.text(young).startswith(said)
    assert finished(engine, old, [1] * 60, 40)
    assert finished(engine, young, [2] * 60, 40)
    assert engine.started(young).new_tokens == 60, "told once, of the first start"


def test_newcomers_never_push_out_running_turns(make_engine) -> None:
    engine = make_engine(num_blocks=10)
    engine.open("a")
    engine.open("b")
    running = engine.submit("a", [1] * 100, max_output_tokens=20, stop_ids=[])
    engine.step(2)
    waiting = engine.submit("b", [2] * 60)
    engine.step()
    assert engine.started(waiting) is None
    engine.run()
    assert engine.stats().preemptions_total == 0
    assert engine.ending(running).counts.output_tokens == 20
    assert isinstance(engine.ending(waiting), TurnIncomplete)


def test_a_newcomer_gets_no_blocks_that_one_before_it_gave_up(make_engine) -> None:
    engine = make_engine(num_blocks=12, block_size=4, enable_prefix_caching=False)
    for session in "abc":
        engine.open(session)
    for session, length in (("a", 16), ("b", 24)):
        engine.submit(session, [1] * length, max_output_tokens=20, stop_ids=[])
        engine.step()
    late = engine.submit("c", [2] * 12, max_output_tokens=1)
    engine.step_until(lambda: engine.stats().preemptions_total > 0)
    assert engine.stats().free_blocks >= 3, "it would fit"
    engine.step()
    assert engine.started(late) is None
    engine.run()
    assert engine.ending(late) is not None


def test_a_newcomer_that_cannot_be_served_now_evicts_nobody(make_engine) -> None:
    engine = make_engine(num_blocks=12)
    for session in "abc":
        engine.open(session)
    engine.turn("b", [2] * 20)
    engine.submit("a", [1] * 100, max_output_tokens=20, stop_ids=[])
    engine.step(2)
    engine.submit("c", [3] * 90)
    engine.step()
    assert engine.view("b").kept_len > 0
    engine.run()


def test_a_waiting_turns_kv_gives_way_so_that_a_running_one_can_end(make_engine) -> None:
    engine = make_engine(num_blocks=9, max_num_seqs=1)
    for session in "ab":
        engine.open(session)
    engine.turn("b", [2] * 40)
    running = engine.submit("a", [1] * 80, max_output_tokens=50, stop_ids=[])
    engine.step()
    waiting = engine.submit("b", [3] * 10)
    engine.step_until(lambda: engine.ending(running) is not None)
    assert engine.view("b").kept_len == 0
    assert engine.stats().evictions_total == {"drop": 1}
    assert finished(engine, running, [1] * 80, 50)
    engine.run()
    assert isinstance(engine.ending(waiting), TurnIncomplete)


def test_a_turn_that_fills_the_pool_needs_no_block_for_its_tails_copy(make_engine) -> None:
    engine = make_engine(num_blocks=4, draw=None)
    engine.open("a")
    engine.turn("a", [1] * 40, max_output_tokens=1, close_ids=[])
    engine.truncate("a", 20)  # ends inside a hashed block
    assert engine.view("a").page_table[1].hashed
    turn = engine.turn("a", [2] * 40, max_output_tokens=4, close_ids=[], stop_ids=[])
    assert engine.kept(turn) == expected_reply(
        [1] * 20 + [2] * 40, draw=engine.draw, max_output_tokens=4, stop_ids=()
    )
    assert engine.model.copies == []
    assert engine.started(turn).reused_tokens == 16


def test_a_tail_shared_while_the_pool_is_full_still_lets_its_turn_end(make_engine) -> None:
    engine = make_engine(num_blocks=4)
    engine.open("a")
    engine.turn("a", [1] * 20, max_output_tokens=1, close_ids=[])
    turn = engine.submit("a", [2] * 27, max_output_tokens=15, close_ids=[], stop_ids=[])
    engine.step()
    engine.fork("b", "a", 21)
    engine.run()
    assert engine.kept(turn) == expected_reply(
        [*engine.loop.memory.contexts["a"].ids[:21], *[2] * 27],
        draw=engine.draw,
        max_output_tokens=15,
        stop_ids=(),
    )


@pytest.mark.parametrize("streams", [2, 5, 9])
def test_every_admitted_turn_ends_however_small_the_pool(make_engine, streams: int) -> None:
    engine = make_engine(num_blocks=7, block_size=4, max_num_batched_tokens=40)
    turns = []
    for number in range(streams):
        engine.open(f"s{number}")
        turns.append(engine.submit(f"s{number}", [number] * 10, max_output_tokens=16, stop_ids=[]))
    engine.run()
    for number, turn in enumerate(turns):
        assert finished(engine, turn, [number] * 10, 16)
