"""Splits a step on out-of-memory, to find the sequences that do not fit. Loop thread only.

A part that is computed again writes the same KV to the same slots, and samples are fixed by their
index: so no other reply changes. A turn fails only if a single one of its rows does not fit while
nothing else is computed.
"""

from collections.abc import Callable, Sequence

from engine.kv.page_table import PageEntry
from engine.kv.step import ModelRunner, SequenceStep, true_draws

Draws = Sequence[int] | None
"""Accepted samples of a sequence; None: there is not enough memory for it."""


def execute(
    runner: ModelRunner, steps: Sequence[SequenceStep], on_shortage: Callable[[], None]
) -> list[Draws]:
    """Compute a step, split on out-of-memory; return each sequence's samples.

    `on_shortage` is called on each out-of-memory error.

    Raises:
        Exception: any error of the model other than `MemoryError`.
    """
    try:
        return _by_step(runner.execute(steps), steps)
    except MemoryError:
        on_shortage()
    if len(steps) > 1:
        half = len(steps) // 2
        first = execute(runner, steps[:half], on_shortage)
        return first + execute(runner, steps[half:], on_shortage)
    (step,) = steps
    draws: Draws = None
    for part in split_step(step):
        (draws,) = execute(runner, [part], on_shortage)
        if draws is None:
            break
    return [draws]


def split_step(step: SequenceStep) -> list[SequenceStep]:
    """Two steps of one sequence that together equal this one; none if it can't be split.

    The sampled rows stay together.
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
    """The page table without its last `count` slots."""
    left = list(entries)
    while count:
        block, first, last, base = left.pop()
        if last - first + 1 > count:
            left.append(PageEntry(block, first, last - count, base))
            break
        count -= last - first + 1
    return left


def _by_step(tokens: list[int], steps: Sequence[SequenceStep]) -> list[Draws]:
    """Accepted samples of each sequence; none for a sequence that does not sample."""
    ends = [0]
    for step in steps:
        ends.append(ends[-1] + (0 if step.sample is None else step.sample.drafts + 1))
    if len(tokens) != ends[-1]:
        raise ValueError(f"the model returned {len(tokens)} tokens instead of {ends[-1]}")
    draws: list[Draws] = []
    for step, first, end in zip(steps, ends, ends[1:], strict=False):
        drawn = tokens[first:end]
        draws.append(true_draws(step, drawn) if len(drawn) > 1 else drawn)
    return draws
