"""Decides what the next step computes. Pure.

Continuous batching (Orca, OSDI 2022) with chunked prefill (Sarathi-Serve, OSDI 2024): streams that
produce text first, so that a long prompt never holds them up; then prompts that run; then new ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.ids import TurnId


class TurnLoad(NamedTuple):
    """A turn and how many of its tokens have no KV yet."""

    turn: TurnId
    pending: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """What a step can choose from: both in order of arrival, preempted turns in their old place."""

    running: Sequence[TurnLoad]
    waiting: Sequence[TurnLoad]
    max_num_batched_tokens: int
    max_num_seqs: int


class Work(NamedTuple):
    """Compute the next `tokens` tokens of a turn."""

    turn: TurnId
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """`work` of running turns, and waiting turns to admit, each in order of precedence.

    An admission may fail for want of blocks; then those after it stay waiting too.
    """

    work: Sequence[Work]
    admissions: Sequence[Work]


def plan_step(view: StepView) -> StepPlan:
    """Fill the step's token budget: decodes, chunks of running prompts, admissions first come."""
    budget = view.max_num_batched_tokens
    decodes = [Work(turn, 1) for turn, pending in view.running if pending == 1]
    budget -= len(decodes)
    chunks, budget = _share(budget, [load for load in view.running if load.pending != 1])
    seats = view.max_num_seqs - len(view.running)
    admissions, _ = _share(budget, view.waiting[:seats])
    return StepPlan(work=decodes + chunks, admissions=admissions)


def _share(budget: int, loads: Sequence[TurnLoad]) -> tuple[list[Work], int]:
    work: list[Work] = []
    for turn, pending in loads:
        if budget <= 0:
            break
        tokens = min(pending, budget)
        work.append(Work(turn, tokens))
        budget -= tokens
    return work, budget
