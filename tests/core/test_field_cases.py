"""Faults that users of comparable servers met, as far as the engine alone can have them."""

import pytest

from engine.ipc.messages import Sampling, TurnDone, TurnFailed, TurnIncomplete, TurnStarted
from tests.fakes.fake_model import FakeText, expected_reply
from tests.harness.loop import CLOSE, Engine


def context_ids(engine: Engine, session: str) -> list[int]:
    return engine.loop.memory.contexts[session].ids


def test_t01_after_all_sessions_of_a_client_are_gone_the_pool_is_as_at_the_start(
    make_engine,
) -> None:
    engine = make_engine(num_blocks=16)
    for _ in range(5):
        for session in "abcd":
            engine.open(session)
            engine.turn(session, [ord(session)] * 50)
        engine.submit("a", [1] * 30)
        engine.step(3)
        for session in "abcd":
            engine.close(session)
        stats = engine.stats()
        assert stats.active_blocks == 0
        assert stats.free_blocks + stats.cached_blocks == 16


@pytest.mark.parametrize("cut_after_steps", [1, 2, 10])
@pytest.mark.parametrize("reason", ["disconnected", "cancelled"])
def test_t03_a_cut_turn_leaves_no_trace_in_the_next_prompt(
    make_engine, cut_after_steps: int, reason: str
) -> None:
    engine = make_engine(max_num_batched_tokens=32)
    engine.open("a")
    first = engine.turn("a", [1] * 512, max_output_tokens=48, stop_ids=[], close_ids=[])
    assert engine.view("a").tokens == 560
    cut = engine.submit("a", [2] * 64, max_output_tokens=48, stop_ids=[], close_ids=[])
    engine.step(cut_after_steps)
    engine.cancel(cut, keep=False, reason=reason)
    assert engine.view("a").tokens == 560
    last = engine.submit("a", [3] * 64, max_output_tokens=48, stop_ids=[], close_ids=[])
    engine.run()
    started = engine.started(last)
    assert started.reused_tokens + started.recomputed_tokens + started.new_tokens == 624
    assert started.reused_tokens >= 559
    prompt = [1] * 512 + engine.kept(first) + [3] * 64
    assert len(prompt) == 624
    assert engine.kept(last) == expected_reply(
        prompt, draw=engine.draw, max_output_tokens=48, stop_ids=()
    )


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("reason", ["cancelled", "disconnected", "deadline", "queue_timeout"])
def test_t04_a_turn_aborted_in_the_queue_leaves_its_session_idle(
    make_engine, reason: str, keep: bool
) -> None:
    engine = make_engine(max_num_seqs=1)
    engine.open("a")
    engine.open("b")
    running, queued = engine.submit("a", [1] * 20), engine.submit("b", [2] * 20)
    engine.step()
    engine.cancel(queued, keep=keep, reason=reason)
    assert engine.ending(queued) is not None
    assert not any(isinstance(event, TurnStarted) for event in engine.events[queued])
    again = engine.submit("b", [3] * 20)
    engine.run()
    assert isinstance(engine.ending(running), TurnIncomplete)
    assert isinstance(engine.ending(again), TurnIncomplete)


def test_t11_idle_sessions_that_fill_the_pool_make_way_for_a_newcomer(make_engine) -> None:
    engine = make_engine(num_blocks=100)
    for number in range(5):
        engine.open(f"s{number}")
        engine.turn(f"s{number}", [number] * 318, max_output_tokens=2, close_ids=[])
    assert engine.stats().active_blocks == 100
    engine.open("new")
    turn = engine.turn("new", [9] * 150, max_output_tokens=4)
    assert engine.ending(turn).counts.output_tokens == 4
    assert [engine.view(f"s{number}").kept_len > 0 for number in range(5)] == [False] + [True] * 4


def test_t13_blocks_after_a_rewind_are_free_at_once_and_shared_ones_survive(
    make_engine,
) -> None:
    engine = make_engine()
    engine.open("a")
    marks = []
    for number in range(10):
        engine.turn("a", [number] * 30)
        marks.append(engine.view("a").tokens)
    engine.fork("fork", "a", marks[5])
    engine.truncate("a", marks[3])
    assert engine.view("a").blocks == -(-marks[3] // 16)
    assert engine.stats().active_blocks == -(-marks[5] // 16)


def test_t16_forks_of_a_generating_parent_prefill_only_their_own_text(make_engine) -> None:
    engine = make_engine(num_blocks=600)
    engine.open("parent")
    engine.turn("parent", [1] * 7393, max_output_tokens=8)
    committed = list(context_ids(engine, "parent"))
    assert len(committed) == 7403
    generating = engine.submit("parent", [2] * 20, max_output_tokens=60, stop_ids=[])
    engine.step(5)
    computed = engine.model.computed_tokens
    turns = []
    for number in range(4):
        engine.fork(f"f{number}", "parent", 7403)
        turns.append(engine.submit(f"f{number}", [10 + number] * 10))
    engine.run()
    prefilled = engine.model.computed_tokens - computed - 56 - 4 * 7
    assert prefilled <= 4 * (16 + 10)
    for number, turn in enumerate(turns):
        assert engine.kept(turn)[:-2] == expected_reply(
            committed + [10 + number] * 10, draw=engine.draw, max_output_tokens=8
        )
    assert engine.kept(generating)[:-2] == expected_reply(
        committed + [2] * 20, draw=engine.draw, max_output_tokens=60, stop_ids=()
    )


def test_t18_a_second_turn_on_a_busy_session_is_refused_and_the_first_goes_on(
    make_engine,
) -> None:
    engine = make_engine()
    engine.open("a")
    first, second = engine.submit("a", [1] * 20), engine.submit("a", [2] * 20)
    refused = engine.ending(second)
    assert isinstance(refused, TurnFailed)
    assert refused.code == "internal_error"
    engine.run()
    assert engine.kept(first)[:-2] == expected_reply(
        [1] * 20, draw=engine.draw, max_output_tokens=8
    )
    assert context_ids(engine, "a") == [1] * 20 + engine.kept(first)


def test_t23_an_answer_that_meets_the_context_limit_is_kept_whole(make_engine) -> None:
    engine = make_engine(num_blocks=80, max_model_len=440)
    engine.open("a")
    prompt, reply = [1] * 40, list(b"The answer is long. " * 20)
    engine.model.script(reply)
    cut = engine.turn("a", prompt, max_output_tokens=1000)
    ending = engine.ending(cut)
    assert isinstance(ending, TurnIncomplete)
    assert (ending.reason, ending.rolled_back) == ("context_length", False)
    assert engine.text(cut) == ending.text == "The answer is long. " * 20
    assert ending.counts.output_tokens == 400
    assert ending.kept_ids == [*reply, *CLOSE]
    assert context_ids(engine, "a") == [*prompt, *reply, *CLOSE]
    refused = engine.ending(engine.turn("a", [2] * 10))
    assert isinstance(refused, TurnFailed)
    assert refused.code == "request_too_large"
    assert context_ids(engine, "a") == [*prompt, *reply, *CLOSE], "a refusal takes nothing"
    engine.truncate("a", 40)
    after = engine.turn("a", [2] * 10)
    assert engine.started(after).reused_tokens >= 32
    assert engine.kept(after)[:-2] == expected_reply(
        [*prompt, *[2] * 10], draw=engine.draw, max_output_tokens=8
    )


def test_t24_the_next_turn_reuses_every_earlier_token_and_counts_the_end_once(
    make_engine,
) -> None:
    engine = make_engine()
    engine.open("a")
    engine.model.script([*b"fine", FakeText.STOP])
    first = engine.turn("a", [1] * 21)
    assert isinstance(engine.ending(first), TurnDone)
    assert engine.ending(first).counts.output_tokens == 5
    assert context_ids(engine, "a") == [*[1] * 21, *b"fine", *CLOSE]
    started = engine.started(engine.turn("a", [2] * 10))
    assert started.reused_tokens == 25, "all but the end of turn, which is owed"
    assert started.new_tokens == 12


def test_t29_a_request_larger_than_the_pool_is_refused_and_the_next_runs(make_engine) -> None:
    engine = make_engine(num_blocks=8, max_model_len=4096)
    engine.open("a")
    engine.open("b")
    too_large, fits = engine.submit("a", [1] * 200), engine.submit("b", [2] * 50)
    refused = engine.ending(too_large)
    assert isinstance(refused, TurnFailed)
    assert refused.code == "request_too_large"
    assert engine.model.steps == 0, "before any work"
    engine.run()
    assert isinstance(engine.ending(fits), TurnIncomplete)
    assert engine.view("a").tokens == 0


def test_t31_a_preempted_turn_keeps_its_place_though_the_queue_is_full(make_engine) -> None:
    engine = make_engine(num_blocks=10, max_num_seqs=2, max_num_waiting=2)
    for session in "abcde":
        engine.open(session)
    old = engine.submit("a", [1] * 60, max_output_tokens=60, stop_ids=[])
    victim = engine.submit("b", [2] * 60, max_output_tokens=60, stop_ids=[])
    engine.step()
    behind = [engine.submit(session, [3] * 10, max_output_tokens=2) for session in "cd"]
    engine.step_until(lambda: engine.stats().preemptions_total > 0)
    refused = engine.ending(engine.submit("e", [4] * 10))
    assert isinstance(refused, TurnFailed)
    assert refused.code == "queue_full"
    assert engine.ending(victim) is None
    # It is the next to run again, though there are blocks enough for those behind it.
    assert [slot.turn for slot in engine.loop.queue.waiting] == [victim, *behind]
    engine.step_until(lambda: engine.started(behind[0]) is not None)
    assert victim in [slot.turn for slot in engine.loop.queue.running] or engine.ending(victim)
    engine.run()
    assert engine.kept(victim)[:-2] == expected_reply(
        [2] * 60, draw=engine.draw, max_output_tokens=60, stop_ids=()
    )
    assert engine.ending(old).counts.output_tokens == 60


def test_t34_no_session_ever_continues_anothers_text(make_engine) -> None:
    engine = make_engine(num_blocks=40, max_num_batched_tokens=64)
    turns = {}
    for number in range(16):
        engine.open(f"s{number}", salt=b"%d" % number)
        prompt = [1] * 32 + [number] * 8
        turns[engine.submit(f"s{number}", prompt)] = prompt
    engine.run()
    for turn, prompt in turns.items():
        assert engine.kept(turn)[:-2] == expected_reply(
            prompt, draw=engine.draw, max_output_tokens=8
        )
        assert engine.started(turn).reused_tokens == 0


def test_t55_text_that_looked_like_a_stop_string_is_sent_when_the_reply_ends(make_engine) -> None:
    engine = make_engine()
    engine.open("a")
    engine.model.script([*b"ab DEF", FakeText.STOP])
    turn = engine.turn("a", [1] * 5, sampling=_stop_at("DEFGHIJ"), max_output_tokens=50)
    assert engine.text(turn) == engine.ending(turn).text == "ab DEF"
    engine.model.script([*b"ab DEFGHIJ"])
    turn = engine.turn("a", [2] * 5, sampling=_stop_at("DEFGHIJ"), max_output_tokens=50)
    assert engine.text(turn) == engine.ending(turn).text == "ab "


def _stop_at(text: str) -> Sampling:
    return Sampling(temperature=0, stop=(text,))
