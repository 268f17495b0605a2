"""M01: a strictly higher priority takes slots and blocks from a lower one; no other turn does."""

import pytest

from engine.ipc.messages import Terms
from tests.fakes.fake_model import expected_reply
from tests.harness.loop import CLOSE, Engine

QUIET = {"idle_prefill": False, "num_speculative_tokens": 0}
LOW, NORMAL, HIGH = range(3)


def submit(
    engine: Engine, name: str, prompt: int = 20, reply: int = 40, priority: int = NORMAL
) -> str:
    engine.open(name, salt=name.encode())
    return engine.submit(
        name,
        [ord(name[-1])] * prompt,
        max_output_tokens=reply,
        stop_ids=[],
        terms=Terms(priority=priority),
    )


def replies_as_alone(engine: Engine, turns: dict[str, tuple[str, int, int]]) -> None:
    """Each turn's tokens are those of an engine that runs nothing else."""
    for turn, (name, prompt, reply) in turns.items():
        alone = expected_reply(
            [ord(name[-1])] * prompt, draw=engine.draw, max_output_tokens=reply, stop_ids=()
        )
        assert engine.kept(turn) == [*alone, *CLOSE]


@pytest.mark.parametrize("users", [2, 32])
@pytest.mark.parametrize("before", [1, 7])
def test_a_high_turn_takes_a_slot_within_one_round(make_engine, users: int, before: int) -> None:
    engine = make_engine(
        num_blocks=2048, max_num_seqs=users, max_num_batched_tokens=64 * users, **QUIET
    )
    low = {
        submit(engine, f"low{n:c}", 20, 200, LOW): (f"low{n:c}", 20, 200)
        for n in range(33, 33 + users)
    }
    engine.step_until(lambda: engine.stats().running == users)
    engine.step(before)
    mine = submit(engine, "high", 20, 6, HIGH)
    engine.step()
    assert engine.started(mine) is not None
    assert (engine.stats().running, engine.stats().waiting) == (users, 1)
    engine.run()
    replies_as_alone(engine, {**low, mine: ("high", 20, 6)})
    assert engine.stats().pauses_total == 1
    assert engine.stats().recomputed_tokens_total == 0, "the paused turn kept its KV"


def test_a_high_turn_takes_blocks_that_two_low_ones_fill(make_engine) -> None:
    engine = make_engine(num_blocks=16, max_num_seqs=4, **QUIET)
    low = {submit(engine, name, 100, 20, LOW): (name, 100, 20) for name in ("low a", "low b")}
    engine.step(4)
    assert engine.stats().running == 2
    mine = submit(engine, "high", 60, 4, HIGH)
    engine.step()
    assert engine.started(mine) is not None
    engine.run()
    replies_as_alone(engine, {**low, mine: ("high", 60, 4)})


def test_what_would_not_suffice_is_not_taken(make_engine) -> None:
    """A normal turn holds the blocks that are short, so a low one would stop in vain."""
    engine = make_engine(num_blocks=16, max_num_seqs=4, **QUIET)
    submit(engine, "low", 16, 40, LOW)
    submit(engine, "other", 160, 40, HIGH)
    engine.step(4)
    mine = submit(engine, "mine", 140, 4, HIGH)
    engine.step(3)
    assert engine.started(mine) is None
    assert engine.stats().pauses_total == 0
    engine.run()


@pytest.mark.parametrize("priority", [LOW, NORMAL, HIGH])
def test_equal_priorities_never_take_from_each_other(make_engine, priority: int) -> None:
    engine = make_engine(num_blocks=64, max_num_seqs=2, **QUIET)
    submit(engine, "a", 20, 50, priority)
    submit(engine, "b", 20, 50, priority)
    engine.step(3)
    mine = submit(engine, "c", 20, 5, priority)
    engine.step(5)
    assert engine.started(mine) is None
    engine.run()
    assert engine.stats().pauses_total == engine.stats().preemptions_total == 0


def test_a_flow_of_high_turns_stops_a_low_one_so_often_and_no_more(make_engine) -> None:
    engine = make_engine(num_blocks=64, max_num_seqs=1, max_preemptions=2, **QUIET)
    low = submit(engine, "low", 20, 60, LOW)
    engine.step(2)
    for number in range(40, 60):
        submit(engine, f"high{number:c}", 20, 3, HIGH)
        for _ in range(8):
            engine.loop.step()
    engine.run()
    assert engine.stats().pauses_total == 2
    replies_as_alone(engine, {low: ("low", 20, 60)})


def test_who_stopped_resumes_before_who_never_ran(make_engine) -> None:
    engine = make_engine(num_blocks=64, max_num_seqs=1, **QUIET)
    first = submit(engine, "a", 20, 30, LOW)
    engine.step(2)
    second = submit(engine, "b", 20, 30, LOW)
    high = submit(engine, "c", 20, 3, HIGH)
    engine.step_until(lambda: engine.ending(first) is not None)
    assert engine.ending(high) is not None
    assert engine.started(second) is None
    engine.run()
