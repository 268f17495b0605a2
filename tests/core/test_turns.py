"""A turn's life: what is told of it, what it counts, what each ending leaves in the context."""

import pytest

from engine.ipc.messages import (
    Sampling,
    SetContext,
    TurnDelta,
    TurnDone,
    TurnFailed,
    TurnIncomplete,
    TurnStarted,
)
from tests.fakes.fake_model import Draw, FakeText, expected_reply
from tests.harness.loop import CLOSE, GREEDY, KV_BYTES_PER_BLOCK, Engine

STOP = FakeText.STOP


def ids(text: str) -> list[int]:
    return list(text.encode())


def context_ids(engine: Engine, session: str = "a") -> list[int]:
    return engine.loop.memory.contexts[session].ids


# --- endings


def test_a_reply_ends_at_a_stop_token_which_is_counted_but_not_kept(engine: Engine) -> None:
    engine.open("a")
    engine.model.script([*ids("hello"), STOP])
    turn = engine.turn("a", ids("say hello"), max_output_tokens=50)
    done = engine.ending(turn)
    assert isinstance(done, TurnDone)
    assert done.text == engine.text(turn) == "hello"
    assert done.kept_ids == [*ids("hello"), *CLOSE]
    assert done.counts.output_tokens == 6
    assert context_ids(engine) == [*ids("say hello"), *ids("hello"), *CLOSE]
    assert engine.view("a").tokens == 9 + 5 + 2


def test_events_come_in_order_and_deltas_join_to_the_text(engine: Engine) -> None:
    engine.open("a")
    engine.model.script([*ids("hé!"), STOP])
    turn = engine.turn("a", ids("x"))
    events = engine.events[turn]
    assert isinstance(events[0], TurnStarted)
    assert all(isinstance(event, TurnDelta) for event in events[1:-1])
    assert [(event.text, event.tokens) for event in events[1:-1]] == [("h", 1), ("é", 2), ("!", 1)]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_limit_of_output_always_holds(engine: Engine, limit: int) -> None:
    engine.open("a")
    turn = engine.turn("a", ids("go on"), max_output_tokens=limit, stop_ids=[])
    cut = engine.ending(turn)
    assert isinstance(cut, TurnIncomplete)
    assert (cut.reason, cut.rolled_back) == ("max_output_tokens", False)
    assert cut.counts.output_tokens == limit
    expected = expected_reply(ids("go on"), draw=engine.draw, max_output_tokens=limit, stop_ids=())
    assert cut.kept_ids == [*expected, *CLOSE]


def test_a_reply_cut_within_a_character_keeps_the_sampled_ids(engine: Engine) -> None:
    engine.open("a")
    engine.model.script(list("né".encode()))
    turn = engine.turn("a", ids("x"), max_output_tokens=2)
    cut = engine.ending(turn)
    assert cut.text == "n\ufffd"
    assert cut.kept_ids == [*"né".encode()[:2], *CLOSE]


def test_a_reply_stops_where_the_model_can_hold_no_more(make_engine) -> None:
    engine = make_engine(max_model_len=30)
    engine.open("a")
    turn = engine.turn("a", [1] * 20, max_output_tokens=50, stop_ids=[])
    cut = engine.ending(turn)
    assert isinstance(cut, TurnIncomplete)
    assert cut.reason == "context_length"
    assert cut.counts.output_tokens == 10


def test_text_before_a_stop_string_is_kept_and_the_rest_is_cut_from_kv(make_engine) -> None:
    engine = make_engine(idle_prefill=False)
    engine.open("a")
    engine.model.script(ids("well END more"))
    turn = engine.turn(
        "a", ids("x" * 20), sampling=Sampling(temperature=0, stop=("END",)), max_output_tokens=50
    )
    done = engine.ending(turn)
    assert isinstance(done, TurnDone)
    assert done.text == engine.text(turn) == "well "
    assert done.kept_ids == [*ids("well "), *CLOSE]
    assert done.counts.output_tokens == 8
    assert engine.view("a").kept_len == 25
    more = engine.turn("a", ids("next"))
    assert engine.kept(more)[:-2] == expected_reply(
        [*ids("x" * 20 + "well "), *CLOSE, *ids("next")], draw=engine.draw, max_output_tokens=8
    )


def test_a_stop_string_cut_inside_a_hashed_block_copies_it(engine: Engine) -> None:
    engine.open("a")
    # 30 prompt tokens: the block of tokens 16 to 31 is full, and hashed, inside the stop string.
    engine.model.script(ids("a STOPPED"))
    sampling = Sampling(temperature=0, stop=("STOPPED",))
    engine.turn("a", [1] * 28, sampling=sampling, max_output_tokens=50)
    view = engine.view("a")
    assert view.kept_len == 30
    assert view.page_table[1].hashed
    more = engine.turn("a", ids("next"))
    assert engine.model.copies == [(view.page_table[1].block, engine.view("a").page_table[1].block)]
    assert engine.kept(more)[:-2] == expected_reply(
        [*[1] * 28, *ids("a "), *CLOSE, *ids("next")], draw=engine.draw, max_output_tokens=8
    )


def test_a_turn_that_generates_nothing_joins_the_context(engine: Engine) -> None:
    engine.open("a")
    turn = engine.turn("a", [1] * 40, generate=False, close_ids=[])
    done = engine.ending(turn)
    assert isinstance(done, TurnDone)
    assert (done.text, done.kept_ids, done.counts.output_tokens) == ("", [], 0)
    assert engine.view("a").kept_len == 40
    again = engine.turn("a", [], generate=False, close_ids=[])
    assert isinstance(engine.ending(again), TurnDone)
    assert engine.model.computed_tokens == 40, "all was there"


def test_generating_without_new_ids_computes_the_last_token_again(engine: Engine) -> None:
    engine.open("a")
    engine.turn("a", [1] * 32, generate=False, close_ids=[])
    turn = engine.turn("a", [])
    started = engine.started(turn)
    assert (started.reused_tokens, started.recomputed_tokens, started.new_tokens) == (31, 1, 0)
    assert engine.kept(turn)[:-2] == expected_reply([1] * 32, draw=engine.draw, max_output_tokens=8)


# --- cancelling


def test_cancelled_with_keep_leaves_exactly_the_ids_whose_text_was_sent(engine: Engine) -> None:
    engine.open("a")
    engine.model.script([*ids("ab"), *"é".encode(), *ids("c")])
    turn = engine.submit("a", ids("x"))
    engine.step(3)  # "a", "b" and half of "é"
    engine.cancel(turn)
    cut = engine.ending(turn)
    assert isinstance(cut, TurnIncomplete)
    assert (cut.reason, cut.rolled_back, cut.text) == ("cancelled", False, "ab")
    assert cut.kept_ids == [*ids("ab"), *CLOSE]
    assert context_ids(engine) == [*ids("xab"), *CLOSE]
    assert engine.view("a").kept_len == 3
    assert not engine.loop.has_work


def test_cancelled_with_a_stop_string_held_back_keeps_nothing_of_it(engine: Engine) -> None:
    engine.open("a")
    engine.model.script(ids("ok DEFG"))
    turn = engine.submit("a", ids("x"), sampling=Sampling(temperature=0, stop=("DEFGH",)))
    engine.step(6)
    engine.cancel(turn)
    assert engine.ending(turn).text == engine.text(turn) == "ok "
    assert context_ids(engine) == [*ids("xok "), *CLOSE]


@pytest.mark.parametrize("reason", ["cancelled", "deadline", "disconnected"])
@pytest.mark.parametrize("steps", [0, 1, 3, 6])
def test_cancelled_without_keep_leaves_the_context_as_before(
    make_engine, steps: int, reason: str
) -> None:
    engine = make_engine(max_num_batched_tokens=32)
    engine.open("a")
    engine.turn("a", [7] * 40)
    before, kv = list(context_ids(engine)), engine.view("a").kept_len
    turn = engine.submit("a", [8] * 60)
    engine.step(steps) if steps else None
    engine.cancel(turn, keep=False, reason=reason)
    cut = engine.ending(turn)
    assert isinstance(cut, TurnIncomplete)
    assert (cut.reason, cut.rolled_back, cut.kept_ids) == (reason, True, [])
    assert context_ids(engine) == before
    assert engine.view("a").kept_len in (kv, len(before)), "owed ids may have been computed"
    assert not engine.loop.has_work


def test_cancelling_twice_or_too_late_tells_nothing_more(engine: Engine) -> None:
    engine.open("a")
    turn = engine.submit("a", ids("x"))
    engine.step()
    engine.cancel(turn)
    told = list(engine.events[turn])
    engine.cancel(turn)
    engine.cancel(turn, keep=False, reason="disconnected")
    engine.cancel("t99")
    engine.run()
    assert engine.events[turn] == told
    assert "t99" not in engine.events


def test_a_queue_timeout_ends_only_a_turn_that_still_waits(make_engine) -> None:
    engine = make_engine(max_num_seqs=1)
    engine.open("a")
    engine.open("b")
    running, waiting = engine.submit("a", ids("x")), engine.submit("b", ids("y"))
    engine.step()
    engine.cancel(running, keep=False, reason="queue_timeout")
    engine.cancel(waiting, keep=False, reason="queue_timeout")
    failed = engine.ending(waiting)
    assert isinstance(failed, TurnFailed)
    assert failed.code == "queue_timeout"
    assert engine.view("b").tokens == 0
    engine.run()
    assert engine.ending(running).counts.output_tokens == 8


# --- counts


def test_reused_recomputed_and_new_tokens_add_up(engine: Engine) -> None:
    engine.open("a")
    first = engine.started(engine.turn("a", [1] * 100))
    assert (first.reused_tokens, first.recomputed_tokens, first.new_tokens) == (0, 0, 100)
    # 100 + 8 of which the last was never computed, + 2 owed.
    second = engine.started(engine.turn("a", [2] * 10))
    assert (second.reused_tokens, second.recomputed_tokens, second.new_tokens) == (107, 0, 13)
    stats = engine.stats()
    assert stats.reused_tokens_total == 107
    assert stats.new_tokens_total == 113
    assert stats.generated_tokens_total == 16


def test_kv_that_was_lost_is_recomputed_not_new(make_engine) -> None:
    engine = make_engine(enable_prefix_caching=False)
    engine.open("a")
    engine.turn("a", [1] * 100)
    engine.release("a")
    lost = engine.started(engine.turn("a", [2] * 10))
    assert (lost.reused_tokens, lost.recomputed_tokens, lost.new_tokens) == (0, 107, 13)


def test_ids_that_no_turn_has_computed_are_new(engine: Engine) -> None:
    engine.loop.handle(SetContext(session="a", salt=b"", ids=ids("s" * 50), computed=0))
    started = engine.started(engine.turn("a", ids("x" * 10)))
    assert (started.reused_tokens, started.recomputed_tokens, started.new_tokens) == (0, 0, 60)


def test_a_context_set_from_ids_is_recomputed(engine: Engine) -> None:
    engine.open("a", [1] * 50)
    started = engine.started(engine.turn("a", [2] * 10))
    assert (started.reused_tokens, started.recomputed_tokens, started.new_tokens) == (0, 50, 10)


def test_tokens_after_a_rewind_are_new_again(engine: Engine) -> None:
    engine.open("a")
    engine.turn("a", [1] * 40)
    engine.truncate("a", 20)
    started = engine.started(engine.turn("a", [2] * 10))
    assert (started.reused_tokens, started.recomputed_tokens, started.new_tokens) == (20, 0, 10)
    engine.fork("f", "a", 20)
    forked = engine.started(engine.turn("f", [3] * 10))
    assert (forked.reused_tokens, forked.recomputed_tokens, forked.new_tokens) == (20, 0, 10)


def test_owed_ids_of_a_fork_are_new_to_it(engine: Engine) -> None:
    engine.open("a")
    engine.turn("a", [1] * 40)
    engine.fork("f", "a", engine.view("a").tokens)
    forked = engine.started(engine.turn("f", [3] * 10))
    assert (forked.reused_tokens, forked.recomputed_tokens, forked.new_tokens) == (47, 0, 13)


def test_ids_kept_without_being_computed_are_new_though_a_rewind_went_further(
    engine: Engine,
) -> None:
    engine.open("a")
    engine.turn("a", [1] * 40)
    engine.truncate("a", 20)
    engine.cancel(engine.submit("a", [2] * 10))
    started = engine.started(engine.turn("a", [3] * 10))
    assert (started.reused_tokens, started.recomputed_tokens, started.new_tokens) == (20, 0, 22)


def test_counts_of_an_ending_tell_times_blocks_and_bytes(engine: Engine) -> None:
    engine.clock.tick_s = 0
    engine.open("a")
    turn = engine.submit("a", [1] * 60)
    engine.clock.advance(2)
    engine.step()
    engine.clock.advance(3)
    engine.run()
    counts = engine.ending(turn).counts
    assert counts.queue_ms == pytest.approx(2000)
    assert counts.ttft_ms == pytest.approx(2000)
    assert counts.total_ms == pytest.approx(5000)
    assert counts.blocks == 5
    assert counts.kv_bytes == 5 * KV_BYTES_PER_BLOCK


# --- reclaim


def test_every_exit_is_counted_and_timed_by_cause(make_engine) -> None:
    engine = make_engine(draw=Draw(stop_every=1))
    engine.open("a")
    engine.turn("a", [1] * 20)
    for keep in (True, False):
        engine.cancel(engine.submit("a", [1] * 20), keep=keep, reason="cancelled")
    engine.cancel(engine.submit("a", [1]), keep=False, reason="disconnected")
    engine.cancel(engine.submit("a", [1]), keep=False, reason="deadline")
    engine.truncate("a", 3)
    engine.release("a")
    engine.submit("a", [1])
    engine.close("a")
    stats = engine.stats()
    assert {cause: times.count for cause, times in stats.reclaim_times.items()} == {
        "finished": 1,
        "cancelled": 3,
        "disconnected": 1,
        "deadline": 1,
        "truncated": 1,
        "released": 1,
        "closed": 1,
    }
    assert all(times.total > 0 for times in stats.reclaim_times.values())


@pytest.mark.parametrize("caching", [True, False])
def test_without_retention_nothing_is_held_between_turns(make_engine, caching: bool) -> None:
    engine = make_engine(retain_kv=False, enable_prefix_caching=caching)
    engine.open("a")
    engine.turn("a", [1] * 40)
    stats = engine.stats()
    assert stats.active_blocks == 0
    assert stats.cached_blocks == (2 if caching else 0)
    started = engine.started(engine.turn("a", [2]))
    assert started.reused_tokens == (32 if caching else 0)


def test_sampling_reaches_the_model(engine: Engine) -> None:
    engine.open("a")
    engine.open("b")
    replies = [
        engine.kept(engine.turn(session, [1] * 20, sampling=sampling))
        for session, sampling in [("a", GREEDY), ("b", Sampling(temperature=1.0, seed=3))]
    ]
    assert replies[1][:-2] == expected_reply(
        [1] * 20,
        draw=engine.draw,
        max_output_tokens=8,
        sampling=Sampling(temperature=1.0, seed=3),
    )
    assert replies[0] != replies[1]
