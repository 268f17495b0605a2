"""Each step of the ladder that the engine takes: reached, told, counted, and where it ends."""

from engine.ipc.messages import Terms, TurnDegraded, TurnDone, TurnFailed, TurnIncomplete
from tests.fakes.fake_model import expected_reply
from tests.harness.loop import Engine

QUIET = {"idle_prefill": False, "num_speculative_tokens": 0, "block_size": 4}
LOW, NORMAL, HIGH = range(3)


def told(engine: Engine, turn: str) -> list[str]:
    return [event.step for event in engine.events[turn] if isinstance(event, TurnDegraded)]


def counted(engine: Engine) -> dict[str, int]:
    return engine.stats().degradations_total


def begin(engine: Engine, session: str, tokens: int, reply: int, priority: int = NORMAL) -> str:
    engine.open(session)
    return engine.submit(
        session,
        [ord(session)] * tokens,
        max_output_tokens=reply,
        stop_ids=[],
        terms=Terms(priority=priority),
    )


def reply_of(engine: Engine, session: str, tokens: int, reply: int) -> list[int]:
    return expected_reply(
        [ord(session)] * tokens, draw=engine.draw, max_output_tokens=reply, stop_ids=()
    )


def test_a_session_whose_kv_gave_way_is_told_in_its_next_turn(make_engine) -> None:
    engine = make_engine(num_blocks=12, **QUIET)
    for session in "abc":
        begin(engine, session, 20, 1)
        engine.run()
    assert engine.view("a").blocks == 0
    assert counted(engine) == {"evict": 1}
    back = engine.turn("a", [1] * 3)
    assert told(engine, back) == ["evict"]
    assert told(engine, engine.turn("a", [1] * 3)) == [], "once"


def test_a_session_whose_kv_was_still_to_be_found_lost_nothing(make_engine) -> None:
    engine = make_engine(num_blocks=12, kv_high_watermark=0.4, kv_low_watermark=0.1, **QUIET)
    first = begin(engine, "a", 20, 1)
    engine.run()
    assert engine.ending(first) is not None
    begin(engine, "b", 3, 1)
    engine.run()
    assert counted(engine)["evict"] >= 1
    again = engine.turn("a", [1] * 3, max_output_tokens=1)
    assert engine.started(again).recomputed_tokens == 0
    assert told(engine, again) == []


def test_whoever_gives_way_is_told_and_those_that_wait_for_it_too(make_engine) -> None:
    engine = make_engine(num_blocks=10, max_num_seqs=4, **QUIET)
    old, young = begin(engine, "a", 12, 24), begin(engine, "b", 12, 24)
    engine.step(2)
    late = begin(engine, "c", 2, 20)
    engine.run()
    assert told(engine, old) == []
    assert told(engine, young)[0] == "preempt"
    assert "limit_running" in told(engine, late)
    assert counted(engine)["preempt"] >= 1
    assert counted(engine)["limit_running"] >= 1
    for session, turn, tokens, reply in (("a", old, 12, 24), ("b", young, 12, 24)):
        assert engine.kept(turn)[:-2] == reply_of(engine, session, tokens, reply)


def test_turns_that_leave_the_queue_unrun_let_no_more_run(make_engine) -> None:
    engine = make_engine(num_blocks=10, max_num_seqs=4, **QUIET)
    for session in "ab":
        begin(engine, session, 12, 24)
    engine.step_until(lambda: engine.stats().preemptions_total > 0)
    limit = engine.loop.queue.limit
    assert limit.now == 1
    for session in "cdef":
        engine.cancel(begin(engine, session, 2, 20), reason="queue_timeout")
    assert limit.now == 1, "they gave nothing back"
    engine.run()
    assert limit.now == 4


def test_t31_nobody_gives_way_more_often_than_is_allowed_and_all_are_answered_whole(
    make_engine,
) -> None:
    engine = make_engine(num_blocks=12, max_num_seqs=8, max_preemptions=2, **QUIET)
    turns = {name: begin(engine, name, 6, 30) for name in "abcdefgh"}
    slots = [engine.loop.queue.of_turn(turn) for turn in turns.values()]
    engine.run()
    assert max(slot.preemption_count for slot in slots) <= 2
    assert sum(slot.preemption_count for slot in slots) == engine.stats().preemptions_total > 0
    for name, turn in turns.items():
        assert engine.kept(turn)[:-2] == reply_of(engine, name, 6, 30), "equals may wait, no more"


def squeezed(engine: Engine, prompt: int, reply: int) -> tuple[str, str, str]:
    """Two low turns have given way to a large one; now a high one comes and grows."""
    large = begin(engine, "c", 30, 24)
    low = [begin(engine, name, 7, 17, LOW) for name in "ab"]
    engine.step_until(lambda: engine.ending(large) is not None)
    slots = [engine.loop.queue.of_turn(turn) for turn in low]
    engine.step_until(lambda: [slot.preemption_count for slot in slots] == [1, 1])
    for name in "xy":
        small = begin(engine, name, 1, 1)  # two ends: a third turn may run again
        engine.step_until(lambda turn=small: engine.ending(turn) is not None)
    high = begin(engine, "h", prompt, reply, HIGH)
    engine.run()
    return low[0], low[1], high


def test_a_reply_is_shortened_to_the_blocks_it_has_for_a_higher_priority(make_engine) -> None:
    engine = make_engine(num_blocks=15, max_num_seqs=4, max_preemptions=1, **QUIET)
    old, young, high = squeezed(engine, 14, 12)
    assert told(engine, young) == ["preempt", "limit_running", "shorten"]
    assert counted(engine)["shorten"] == 1
    assert_cut(engine, young, 17)
    assert engine.kept(old)[:-2] == reply_of(engine, "a", 7, 17)
    assert engine.kept(high)[:-2] == reply_of(engine, "h", 14, 12)
    assert told(engine, high) == []


def test_the_least_entitled_stream_ends_with_what_it_said_when_it_has_no_block_left(
    make_engine,
) -> None:
    engine = make_engine(num_blocks=15, max_num_seqs=4, max_preemptions=1, **QUIET)
    old, young, high = squeezed(engine, 20, 12)
    assert told(engine, young) == ["preempt", "limit_running", "end_stream"]
    assert counted(engine)["end_stream"] == 1
    assert_cut(engine, young, 17)
    assert engine.kept(old)[:-2] == reply_of(engine, "a", 7, 17)
    assert engine.kept(high)[:-2] == reply_of(engine, "h", 20, 12)


def assert_cut(engine: Engine, turn: str, wanted: int) -> None:
    """It ended as incomplete with the beginning of its reply, and its session goes on from that."""
    cut = engine.ending(turn)
    assert isinstance(cut, TurnIncomplete)
    assert (cut.reason, cut.rolled_back) == ("memory_pressure", False)
    said = cut.kept_ids[:-2]
    assert 0 < len(said) < wanted
    assert said == reply_of(engine, "b", 7, wanted)[: len(said)]
    assert engine.text(turn) == cut.text
    after = engine.turn("b", [5] * 3, max_output_tokens=4, stop_ids=[])
    before = [ord("b")] * 7 + cut.kept_ids + [5] * 3
    assert engine.kept(after)[:-2] == expected_reply(
        before, draw=engine.draw, max_output_tokens=4, stop_ids=()
    )


def test_a_turn_that_could_never_fit_is_refused_and_one_too_many_too(make_engine) -> None:
    engine = make_engine(num_blocks=10, max_num_seqs=1, max_num_waiting=1, **QUIET)
    huge = begin(engine, "z", 38, 1)
    turns = [begin(engine, name, 6, 30) for name in "abc"]
    endings = [engine.ending(turn) for turn in (huge, *turns)]
    codes = [ending.code if isinstance(ending, TurnFailed) else None for ending in endings]
    assert codes == ["request_too_large", None, None, "queue_full"]
    engine.run()
    assert all(engine.kept(turn) for turn in turns[:2])


def test_who_has_no_turn_at_work_is_taken_though_others_fill_the_queue(make_engine) -> None:
    engine = make_engine(num_blocks=20, max_num_seqs=1, max_num_waiting=1, **QUIET)
    flood = [begin(engine, name, 6, 30) for name in "ab"]
    for name in "xy":
        engine.open(name, salt=b"another")
    first, second = (engine.submit(name, [1] * 6, max_output_tokens=4) for name in "xy")
    assert engine.ending(first) is None
    assert engine.ending(second).code == "queue_full"
    engine.run()
    assert all(engine.kept(turn) for turn in [*flood, first])


def test_a_turn_that_only_prefills_is_waited_for(make_engine) -> None:
    engine = make_engine(num_blocks=12, max_preemptions=0, max_num_batched_tokens=32, **QUIET)
    engine.open("b")
    first = begin(engine, "a", 6, 12)
    silent = engine.submit("b", [7] * 28, generate=False, close_ids=[])
    engine.run()
    assert isinstance(engine.ending(silent), TurnDone)
    assert engine.kept(first)[:-2] == reply_of(engine, "a", 6, 12)
