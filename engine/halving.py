"""Runs a step in parts when there is no memory for it whole, to find out who it is that lacks it.

A part that is computed again writes the same KV to the same slots, and draws are fixed by their
index: so nobody else's reply is changed by it. A turn is to blame only if not even one of its rows
finds memory while nothing else is computed.
"""

from collections.abc import Callable, Sequence
from itertools import islice

from engine.memory.page_table import PageEntry
from engine.step import ModelRunner, SequenceStep, true_draws

Draws = Sequence[int] | None
"""What a sequence drew that stands; None: there is no memory for it."""


def execute(
    runner: ModelRunner, steps: Sequence[SequenceStep], on_shortage: Callable[[], None]
) -> list[Draws]:
    """Compute a step, by halves if need be; says of each sequence what it drew.

    `on_shortage` is called each time that memory is short.

    Raises:
        Exception: what the model raised, other than `MemoryError`.
    """
    try:
        return list(_by_step(runner.execute(steps), steps))
    except MemoryError:
        on_shortage()
    if len(steps) > 1:
        half = len(steps) // 2
        first = execute(runner, steps[:half], on_shortage)
        return first + execute(runner, steps[half:], on_shortage)
    (step,) = steps
    draws: Draws = None
    for part in halves(step):
        (draws,) = execute(runner, [part], on_shortage)
        if draws is None:
            break
    return [draws]


def halves(step: SequenceStep) -> list[SequenceStep]:
    """Two steps of one sequence that do together what this one does; none if it can't be parted.

    The rows that are drawn from stay together.
    """
    drawn = 0 if step.sample is None else step.sample.drafts + 1
    count = min(len(step.token_ids) // 2, len(step.token_ids) - drawn)
    if count <= 0:
        return []
    rest = len(step.token_ids) - count
    return [
        SequenceStep(
            token_ids=step.token_ids[:count],
            first_position=step.first_position,
            entries=_without_last(step.entries, rest),
            sample=None,
        ),
        SequenceStep(
            token_ids=step.token_ids[count:],
            first_position=step.first_position + count,
            entries=step.entries,
            sample=step.sample,
        ),
    ]


def _without_last(entries: Sequence[PageEntry], count: int) -> list[PageEntry]:
    """The page table before its last `count` slots."""
    left = list(entries)
    while count:
        block, first, last, base = left.pop()
        if last - first + 1 > count:
            left.append(PageEntry(block, first, last - count, base))
            break
        count -= last - first + 1
    return left


def _by_step(tokens: list[int], steps: Sequence[SequenceStep]) -> list[Sequence[int]]:
    """Each sequence's draws that stand; none of a sequence that draws nothing."""
    counts = [0 if step.sample is None else step.sample.drafts + 1 for step in steps]
    if len(tokens) != sum(counts):
        raise ValueError(f"the model drew {len(tokens)} tokens instead of {sum(counts)}")
    draws = iter(tokens)
    return [
        true_draws(step, list(islice(draws, count)))
        for step, count in zip(steps, counts, strict=True)
    ]
