"""Turns in the background: they have what others leave, and hold nothing that others want."""

import pytest

from engine.ipc.messages import TurnFailed
from tests.fakes.fake_model import expected_reply
from tests.harness.loop import Engine


def right(engine: Engine, turn: str, ids: list[int], limit: int) -> bool:
    reply = expected_reply(ids, draw=engine.draw, max_output_tokens=limit, stop_ids=())
    return engine.kept(turn)[:-2] == reply


def background(engine: Engine, session: str, ids: list[int], limit: int = 40) -> str:
    return engine.submit(session, ids, background=True, max_output_tokens=limit, stop_ids=[])


def has_ended(engine: Engine, turn: str) -> bool:
    return engine.ending(turn) is not None


def said(engine: Engine, session: str) -> list[int]:
    """Open a session with one turn in it; its ids."""
    engine.open(session)
    ids = [ord(session)] * 60
    return ids + engine.kept(engine.turn(session, ids, max_output_tokens=1))


@pytest.fixture
def engine(make_engine) -> Engine:
    engine = make_engine()
    before = said(engine, "i")
    engine.fork("back", "i", len(before))
    engine.open("other")
    return engine


@pytest.fixture
def before(engine) -> list[int]:
    """What the context of the turn in the background begins with."""
    return [ord("i")] * 60 + engine.kept("t1")


def test_it_runs_as_any_turn_while_nobody_else_does(engine, before) -> None:
    turn = background(engine, "back", [2, 3])
    engine.run()
    assert right(engine, turn, [*before, 2, 3], 40)
    assert engine.started(turn).reused_tokens >= len(before) - 16
    assert engine.stats().preemptions_total == 0


def test_m02_it_has_a_share_of_each_step_beside_a_stream_that_never_ends(engine, before) -> None:
    other = engine.submit("other", [5] * 40, max_output_tokens=200, stop_ids=[])
    engine.step(5)
    turn = background(engine, "back", [2, 3])
    shared = 0
    while not has_ended(engine, turn):
        said = len(engine.text(other))
        engine.step()
        shared += 1
        assert len(engine.text(other)) == said + 1, "the stream has all of its tokens"
    assert shared <= 40 + 3
    assert right(engine, turn, [*before, 2, 3], 40)
    engine.run()
    assert right(engine, other, [5] * 40, 200)
    assert engine.stats().preemptions_total == 0


@pytest.fixture
def narrow(make_engine) -> Engine:
    """As `engine`, with one slot and no idle prefill."""
    engine = make_engine(max_num_seqs=1, idle_prefill=False)
    before = said(engine, "i")
    engine.fork("back", "i", len(before))
    engine.open("other")
    return engine


def test_it_gives_up_its_slot_within_a_step_and_goes_on_where_it_was(narrow) -> None:
    engine, before = narrow, [ord("i")] * 60 + narrow.kept("t1")
    turn = background(engine, "back", [2, 3])
    engine.step(5)
    text = engine.text(turn)
    assert text
    other = engine.submit("other", [5] * 40, max_output_tokens=10, stop_ids=[])
    computed = engine.model.computed_tokens
    while not has_ended(engine, other):
        engine.step()
        if not has_ended(engine, other):
            assert engine.view("back").blocks == 0
            assert engine.text(turn) == text
    assert engine.model.computed_tokens - computed == 40 + 9, "the other's tokens and no more"
    again = engine.model.computed_tokens
    engine.run()
    assert right(engine, turn, [*before, 2, 3], 40)
    left = 40 - len(text)
    assert engine.model.computed_tokens - again <= left + 16 + 4, "full blocks were found again"


def test_it_gives_up_its_slot_any_number_of_times(make_engine) -> None:
    engine = make_engine(max_num_seqs=1, max_preemptions=1, idle_prefill=False)
    engine.open("back")
    turn = background(engine, "back", [2] * 20)
    for session in "abcd":
        engine.open(session, salt=session.encode())
        other = engine.submit(session, [1] * 20, max_output_tokens=4, stop_ids=[])
        engine.step()
        assert engine.started(other) is not None
        engine.step_until(lambda other=other: has_ended(engine, other))
        engine.step(2)
    assert not has_ended(engine, turn)
    engine.run()
    assert right(engine, turn, [2] * 20, 40)


def test_it_gives_its_owner_no_worse_place(make_engine) -> None:
    """Beside a summary of its own a user is still one that runs nothing."""
    engine = make_engine(max_num_seqs=2, idle_prefill=False)
    for session, owner in (("back", b"one"), ("mine", b"one"), ("a", b"two"), ("b", b"two")):
        engine.open(session, salt=owner)
    turn = background(engine, "back", [2] * 20)
    long = {one: engine.submit(one, [1] * 20, max_output_tokens=90, stop_ids=[]) for one in "ab"}
    engine.step(4)
    assert engine.stats().running == 2, "both of the other user's"
    mine = engine.submit("mine", [3] * 20, max_output_tokens=4, stop_ids=[])
    engine.step(2)
    assert engine.started(mine) is not None
    engine.run()
    for one in long.values():
        assert right(engine, one, [1] * 20, 90)
    assert right(engine, turn, [2] * 20, 40)


def test_while_it_waits_it_earns_its_owner_no_credit(make_engine) -> None:
    engine = make_engine(max_num_seqs=1, idle_prefill=False)

    def submit(session: str, **fields: object) -> str:
        engine.open(session, salt=session[:1].encode())
        prompt = [ord(session[-1])] * 20
        return engine.submit(session, prompt, max_output_tokens=20, stop_ids=[], **fields)

    busy = [submit(f"c{number}") for number in range(4)]
    submit("a-back", background=True)
    engine.step_until(lambda: engine.started(busy[3]) is not None)
    later, mine = [[submit(f"{owner}{n}") for n in range(4, 7)] for owner in "ca"]
    engine.run()
    order = [turn for turn in engine.events if turn in {*later, *mine}]
    begun = sorted(order, key=lambda turn: engine.started(turn).queue_ms)
    assert begun.index(later[0]) < begun.index(mine[2]), "the two take turns"


def test_it_gives_up_its_blocks_to_a_turn_that_grows(make_engine) -> None:
    engine = make_engine(num_blocks=10, idle_prefill=False)
    for session in "ab":
        engine.open(session)
    turn = background(engine, "b", [2] * 60)
    other = engine.submit("a", [1] * 20, max_output_tokens=110, stop_ids=[])
    engine.step_until(lambda: has_ended(engine, other))
    assert right(engine, other, [1] * 20, 110)
    assert not has_ended(engine, turn)
    engine.close("a")
    engine.run()
    assert right(engine, turn, [2] * 60, 40)
    assert engine.stats().preemptions_total >= 1
    assert not engine.stats().degradations_total


def test_it_waits_for_spare_blocks_while_another_turn_runs(make_engine) -> None:
    engine = make_engine(num_blocks=13, idle_prefill=False)
    said(engine, "a")
    engine.open("b")
    engine.open("back")
    other = engine.submit("b", [1] * 60, max_output_tokens=40, stop_ids=[])
    engine.step(2)
    turn = background(engine, "back", [2] * 20, limit=30)
    engine.step(5)
    assert not has_ended(engine, turn)
    engine.step_until(lambda: has_ended(engine, other))
    engine.close("b")
    engine.run()
    assert right(engine, turn, [2] * 20, 30)
    assert not engine.stats().evictions_total, "the idle session kept its blocks"


def test_it_waits_for_all_that_come_and_takes_no_place_from_them(make_engine) -> None:
    engine = make_engine(max_num_seqs=1, max_num_waiting=0)
    for session in "abc":
        engine.open(session)
    turn = background(engine, "b", [2] * 20, limit=4)
    first = engine.submit("a", [1] * 20)
    refused = engine.submit("c", [3] * 20)
    assert isinstance(engine.events[refused][-1], TurnFailed), "the one place is taken"
    engine.step()
    assert turn not in engine.events
    while not has_ended(engine, first):
        engine.step()
    later = engine.submit("c", [3] * 20)
    engine.run()
    assert right(engine, turn, [2] * 20, 4)
    order = list(engine.events)
    assert order.index(later) < order.index(turn)


def test_with_raised_priority_it_is_like_any_other(narrow) -> None:
    engine = narrow
    before = [ord("i")] * 60 + engine.kept("t1")
    turn = background(engine, "back", [2, 3], limit=6)
    other = engine.submit("other", [5] * 40, max_output_tokens=30, stop_ids=[])
    engine.step(3)
    assert turn not in engine.events
    engine.raise_priority("back")
    engine.raise_priority("nobody")
    engine.open("later")
    later = engine.submit("later", [4] * 40, max_output_tokens=30, stop_ids=[])
    engine.step_until(lambda: has_ended(engine, turn))
    assert has_ended(engine, other)
    assert not has_ended(engine, later), "it has the place of its arrival"
    assert right(engine, turn, [*before, 2, 3], 6)
    engine.run()
    assert right(engine, other, [5] * 40, 30)


def test_no_idle_session_loses_blocks_to_it(make_engine) -> None:
    engine = make_engine(num_blocks=10)
    before = said(engine, "a")
    said(engine, "b")
    engine.fork("back", "a", len(before))
    turn = background(engine, "back", [2, 3])
    engine.run()
    ending = engine.events[turn][-1]
    assert isinstance(ending, TurnFailed)
    assert ending.code == "queue_full"
    assert not engine.stats().evictions_total
    fits = background(engine, "back", [2, 3], limit=8)
    engine.run()
    assert right(engine, fits, [*before, 2, 3], 8)
    assert not engine.stats().evictions_total


def test_cancelled_while_it_gives_way_it_leaves_nothing(engine) -> None:
    held = engine.stats().active_blocks
    turn = background(engine, "back", [2, 3])
    engine.step(5)
    other = engine.submit("other", [5] * 40, max_output_tokens=10)
    engine.step()
    engine.cancel(turn, keep=False)
    engine.close("back")
    engine.run()
    assert has_ended(engine, other)
    engine.close("other")
    assert engine.stats().active_blocks == held
