"""Turns that begin as an engine expects them to, and what they cost."""

from tests.fakes.fake_model import expected_reply
from tests.harness.loop import CLOSE, Engine

HEADER = [257, 258, 259]
OTHER = [257, 260, 261, 262]
OWED = 1 + len(CLOSE)  # replies meet their limit here, so that their last id has no KV


def reply_to(engine: Engine, ids: list[int]) -> list[int]:
    return expected_reply(ids, draw=engine.draw, max_output_tokens=8)


def context_of(engine: Engine, session: str = "a"):
    return engine.loop.memory.contexts[session]


def answered(engine: Engine, session: str = "a", prompt: int = 16, **fields: object) -> list[int]:
    """Open a session and run one turn that expects HEADER next; returns the context's ids."""
    engine.open(session)
    engine.turn(session, [1] * prompt, **{"draft_ids": HEADER, **fields})
    return list(context_of(engine, session).ids)


def works_in_advance(engine: Engine) -> bool:
    steps = engine.model.steps
    engine.run()
    return engine.model.steps > steps


def cost(engine: Engine, session: str, ids: list[int], **fields: object) -> int:
    """Tokens that the model computes for a turn of one output token."""
    before = engine.model.computed_tokens
    turn = engine.submit(session, ids, max_output_tokens=1, **fields)
    engine.step_until(lambda: engine.ending(turn) is not None)
    return engine.model.computed_tokens - before
