"""Decides what the next step computes. Pure.

Continuous batching (Orca, OSDI 2022) with chunked prefill (Sarathi-Serve, OSDI 2024): decoding
streams first, so that a long prompt never holds them up; the remaining time goes to prompts, by
priority, the shortest first, while the oldest prompt of the least-served owner has a share of its
own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.core.step_cost import Pace, StepBudget, StepLoad
from engine.ids import TurnId

_OLDEST_SHARE = 0.25  # of a step's prefill: no prompt is starved by a flow of shorter ones


class TurnLoad(NamedTuple):
    """A turn: `pending` of its tokens have no KV yet, and follow the `first` that have.

    `next_key`: chain key of the page that it computes next; None: it can't be shared. `served`:
    service that its owner has received, comparable among owners.
    """

    turn: TurnId
    pending: int
    first: int = 0
    next_key: bytes | None = None
    priority: int = 1
    served: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """Turns that a step can choose from: running and waiting, in order of service."""

    running: Sequence[TurnLoad]
    waiting: Sequence[TurnLoad]
    max_num_seqs: int
    block_size: int
    pace: Pace


class Work(NamedTuple):
    """Compute the next `tokens` tokens of a turn."""

    turn: TurnId
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """`work` of running turns, and waiting turns to admit, in order of arrival.

    An admission may fail for lack of blocks; then those after it keep waiting, too. One without
    tokens gets its blocks before younger ones do, and computes later.
    """

    work: Sequence[Work]
    admissions: Sequence[Work]


class _Prompt:
    """A prompt that the step can continue; its next `wanted` tokens decide its priority."""

    def __init__(self, load: TurnLoad, *, has_slot: bool) -> None:
        self.load = load
        self.has_slot = has_slot
        self.wanted = load.pending
        self.rank = (-load.priority, load.served)
        self.tokens = 0  # tokens granted in this step

    @property
    def work(self) -> Work:
        return Work(self.load.turn, self.tokens)


def plan_step(view: StepView) -> StepPlan:
    """Fill the step: decodes, then chunks of prompts, those of waiting turns included.

    A waiting turn whose next block is about to be computed by another turn keeps waiting, without
    holding up those behind it: it will find the block in the prefix cache.
    """
    decodes, work = [], []
    for load in view.running:
        if load.pending == 1:
            decodes.append(load)
            work.append(Work(load.turn, 1))
    if len(decodes) == len(view.running) and not view.waiting:
        return StepPlan(work=work, admissions=[])
    prompts = _leaders(view)
    streams = [StepLoad.of(load.first, 1) for load in decodes]
    waiting = len(view.running) - len(decodes) + len(view.waiting)
    _share(StepBudget(view.pace, streams, waiting), prompts, view.block_size)
    admissions = [prompt for prompt in prompts if not prompt.has_slot]
    while admissions and admissions[-1].load.pending and not admissions[-1].tokens:
        admissions.pop()
    return StepPlan(
        work=[*work, *(prompt.work for prompt in prompts if prompt.has_slot and prompt.tokens)],
        admissions=[prompt.work for prompt in admissions],
    )


def _leaders(view: StepView) -> list[_Prompt]:
    """Running prompts, and waiting ones that have a running slot and follow no other prompt.

    A prompt that others follow counts as short as its shortest follower, so that none waits for
    long.
    """
    running = (load for load in view.running if load.pending != 1)
    prompts = [_Prompt(load, has_slot=True) for load in running]
    leader_of = {prompt.load.next_key: prompt for prompt in prompts}
    running_slots = view.max_num_seqs - len(view.running)
    for load in view.waiting:
        key = load.next_key
        leader = None if key is None else leader_of.get(key)
        if leader is not None:
            leader.wanted = min(leader.wanted, load.pending)
            leader.rank = min(leader.rank, (-load.priority, load.served))
        elif running_slots:
            running_slots -= 1
            prompts.append(_Prompt(load, has_slot=False))
            leader_of[key] = prompts[-1]
    return prompts


def _share(budget: StepBudget, prompts: Sequence[_Prompt], block_size: int) -> None:
    """Grant the oldest and the shortest prompt a block at any cost, then serve short ones first.

    The oldest is that of the least-served owner; both are chosen within a priority. What is left
    after all wanted tokens goes to the oldest first.
    """

    def grant(prompt: _Prompt, up_to: int, at_least: int = 0) -> None:
        load, granted = prompt.load, prompt.tokens
        up_to = min(up_to, load.pending)
        budget.refund(load.first, granted)
        fitting = budget.fitting(load.first, up_to)
        if fitting < min(block_size, up_to):
            fitting = 0  # too few tokens to read the whole context for
        prompt.tokens = max(granted, fitting, min(at_least, up_to, budget.rows))
        budget.spend(load.first, prompt.tokens)

    prompts = [prompt for prompt in prompts if prompt.load.pending]
    if not prompts:
        return
    prompts.sort(key=lambda prompt: prompt.rank)
    by_length = sorted(prompts, key=lambda prompt: (prompt.rank[0], prompt.wanted))
    # A turn without a running slot may find no blocks: alone, it would block those that must end
    # first.
    oldest = next((prompt for prompt in prompts if prompt.has_slot), prompts[0])
    part = budget.fitting(oldest.load.first, oldest.load.pending, _OLDEST_SHARE)
    grant(oldest, max(part, block_size), at_least=block_size)
    grant(by_length[0], block_size, at_least=block_size)
    for prompt in by_length:
        grant(prompt, prompt.wanted)
    for prompt in prompts:
        grant(prompt, prompt.load.pending)
