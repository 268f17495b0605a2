"""Short words for what sessions do on an engine with tiers."""

from engine.ipc.messages import TurnDone, TurnIncomplete
from tests.fakes.fake_model import expected_reply
from tests.harness.loop import Engine

QUIET = {"idle_prefill": False, "num_speculative_tokens": 0}
PROMPT = list(range(100))


def reply(engine: Engine, ids: list[int], count: int = 8) -> list[int]:
    return expected_reply(ids, draw=engine.draw, max_output_tokens=count)


def used(engine: Engine, session: str = "a") -> list[int]:
    """A session with a turn; returns its ids."""
    engine.open(session)
    turn = engine.turn(session, PROMPT)
    return [*PROMPT, *engine.kept(turn)]


def again(engine: Engine, ids: list[int], session: str = "a"):
    """The session's next turn: its reply is right; returns what it took."""
    turn = engine.turn(session, [7])
    ending = engine.ending(turn)
    assert isinstance(ending, TurnDone | TurnIncomplete)
    expected = reply(engine, [*ids, 7])
    assert ending.kept_ids[: len(expected)] == expected
    return ending.counts


def fill(engine: Engine) -> str:
    """A session that takes the whole pool, so that nothing is found on the device after it."""
    engine.open("z")
    turn = engine.turn("z", [3] * (16 * engine.stats().total_blocks - 4), max_output_tokens=1)
    assert isinstance(engine.ending(turn), TurnDone | TurnIncomplete)
    engine.close("z")
    engine.open("y")
    return "y"
