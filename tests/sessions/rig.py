"""Turns on the real engine behind the service: replies tell of any wrong block."""

from functools import partial

from tests.fakes.fake_model import Draw, expected_reply
from tests.harness import engine
from tests.harness.engine import StepGate
from tests.harness.service import ask

__all__ = ["DRAW", "Rig", "StepGate", "greedy", "reply_after"]

DRAW = Draw(stop_every=9)
Rig = partial(engine.Rig, draw=DRAW, num_speculative_tokens=0)


def greedy(*texts, **fields):
    return ask(*texts, **{"temperature": 0.0, "max_output_tokens": 24, **fields})


def reply_after(ids, tokens=24):
    reply = expected_reply(ids, draw=DRAW, max_output_tokens=tokens)
    return bytes(token for token in reply if token != 256).decode()
