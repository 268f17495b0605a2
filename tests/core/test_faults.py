"""A model's step that fails takes its own turns with it, and nothing else."""

import pytest

from engine.ipc.messages import TurnFailed, TurnIncomplete
from tests.fakes.fake_model import expected_reply
from tests.harness.loop import Engine


def test_a_failing_step_fails_its_turns_and_leaves_the_pool_unharmed(engine: Engine) -> None:
    for session in ("a", "b"):
        engine.open(session)
        engine.turn(session, [1] * 20)
    turns = [engine.submit(session, [2] * 20) for session in ("a", "b")]
    engine.model.fail_at.add(engine.model.steps + 2)
    engine.run()
    for session, turn in zip("ab", turns, strict=True):
        failed = engine.ending(turn)
        assert isinstance(failed, TurnFailed)
        assert failed.code == "internal_error"
        assert "injected" not in failed.message.lower(), "no inner words for users"
        assert engine.view(session).tokens == 30
        assert isinstance(engine.ending(engine.turn(session, [2] * 20)), TurnIncomplete)
    assert engine.stats().reclaim_times["internal_error"].count == 2


def test_turns_outside_a_failing_batch_go_on(make_engine) -> None:
    engine = make_engine(max_num_seqs=1)
    engine.open("a")
    engine.open("b")
    failing, waiting = engine.submit("a", [1] * 20), engine.submit("b", [2] * 20)
    engine.model.fail_at.add(1)
    engine.run()
    assert isinstance(engine.ending(failing), TurnFailed)
    assert isinstance(engine.ending(waiting), TurnIncomplete)


def test_a_sequence_without_finite_logits_fails_alone() -> None:
    class OneIsNotFinite:
        def __init__(self, model: object) -> None:
            self.model = model
            self.copy_block = model.copy_block

        def execute(self, batch: list) -> list[int]:
            return [-1, *self.model.execute(batch)[1:]]

    engine = Engine()
    engine.switch.runner = OneIsNotFinite(engine.model)
    engine.open("a")
    engine.open("b")
    poisoned, sound = engine.submit("a", [1] * 20), engine.submit("b", [2] * 20)
    engine.step()
    engine.switch.runner = engine.model
    engine.run()
    assert engine.ending(poisoned).code == "internal_error"
    assert engine.view("a").kept_len == 0
    assert engine.kept(sound)[:-2] == expected_reply(
        [2] * 20, draw=engine.draw, max_output_tokens=8
    )
    engine.check()


def test_a_model_that_draws_too_few_tokens_fails_its_step(engine: Engine) -> None:
    class DrawsNothing:
        copy_block = engine.model.copy_block

        def execute(self, batch: list) -> list[int]:
            return []

    engine.switch.runner = DrawsNothing()
    engine.open("a")
    assert engine.ending(engine.turn("a", [1])).code == "internal_error"


@pytest.mark.parametrize("fault", ["poison_at", "fail_at"])
def test_kv_of_a_failed_turn_is_hit_by_nobody(make_engine, fault: str) -> None:
    engine = make_engine(max_num_batched_tokens=32)
    for session in ("a", "b"):
        engine.open(session)
    engine.turn("a", [1] * 32, generate=False, close_ids=[])
    getattr(engine.model, fault).add(engine.model.steps + 2)
    failed = engine.turn("a", [2] * 48)
    assert engine.ending(failed).code == "internal_error"
    assert engine.stats().cached_blocks == 0, "neither its first chunk nor what that read"
    other = engine.turn("b", [1] * 32 + [2] * 48)
    assert engine.started(other).reused_tokens == 0
    again = engine.started(engine.turn("a", [3] * 8))
    assert again.recomputed_tokens + again.reused_tokens == 32, "its ids are known"


def test_kv_that_others_share_with_a_failed_turn_stays_theirs(engine: Engine) -> None:
    engine.open("a", [1] * 32)
    engine.turn("a", [2])
    engine.fork("b", "a", 32)
    engine.model.poison_at.add(engine.model.steps + 1)
    engine.turn("a", [3])
    assert engine.view("b").kept_len == 32
    engine.check()
    reply = engine.kept(engine.turn("b", [4] * 20))[:-2]
    assert reply == expected_reply([1] * 32 + [4] * 20, draw=engine.draw, max_output_tokens=8)
