"""Draft budget: how many drafts a step verifies beside the true tokens. Pure.

A verified draft costs one row of a step. If it is accepted, it saves one row of a later step and
that row's share of reading the weights. So drafts pay off in small batches and in repetitive text.
Every prediction is compared with the sampled token, verified in a step or not, so that a low
acceptance rate is noticed without spending rows.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import merge
from itertools import islice
from typing import NamedTuple

from engine.ngram import NgramGuess
from engine.step_cost import StepLoad, StepPrice

_MEMORY = 0.1  # weight of the last draft in the acceptance rate
_MARGIN = 1.1  # required gain: prices and acceptance rates are estimates
_HOPELESS = 0.5  # below this ratio of gain to linear cost no correction makes a row worth it


class Chances:
    """Acceptance rates of the drafts of one turn.

    `fresh`: the first draft from a new place. `going`: a draft after an accepted one from its
    place.
    """

    def __init__(self) -> None:
        self.fresh = 0.3
        self.going = 0.7

    def note(self, *, true: bool, run: int) -> None:
        """Record whether a draft after `run` accepted ones from its place was accepted."""
        if run:
            self.going += _MEMORY * (true - self.going)
        else:
            self.fresh += _MEMORY * (true - self.fresh)

    def of(self, run: int, count: int) -> Iterable[float]:
        """Probabilities that the first, the first two, ... of `count` drafts are accepted."""
        chance = self.going if run else self.fresh
        for _ in range(count):
            yield chance
            chance *= self.going


class TurnGuesses:
    """Drafts for one turn's reply, and their acceptance rates."""

    def __init__(self, ids: Sequence[int]) -> None:
        """`ids`: the whole context, up to the last sampled token."""
        self._ngram = NgramGuess(ids)
        self._chances = Chances()

    def learn(self, tokens: Sequence[int]) -> None:
        """Add the tokens that were sampled next."""
        for token in tokens:
            run = self._ngram.run
            true = self._ngram.push(token)
            if true is not None:
                self._chances.note(true=true, run=run)

    def chances(self, count: int) -> list[float]:
        """Probabilities that the first, the first two, ... of up to `count` drafts are accepted."""
        return list(self._chances.of(self._ngram.run, count)) if self._ngram.exists else []

    def tokens(self, count: int) -> list[int]:
        """The next `count` draft tokens."""
        return self._ngram.tokens(count)


class Candidate(NamedTuple):
    """A sequence that samples one token. `chances`: falling acceptance probabilities of its drafts.

    `context`: tokens that a draft attends to.
    """

    chances: Sequence[float]
    context: int


def draft_counts(
    candidates: Sequence[Candidate],
    load: StepLoad,
    price: StepPrice,
    factor: Callable[[int], float],
    most: int,
) -> list[int]:
    """Return the number of drafts per candidate in a step of `load`, `most` in all.

    The likeliest come first, up to the number that maximizes accepted rows per second; `factor`
    corrects the price of a step by its number of rows.
    """
    useful, seconds = float(load.rows), price.seconds(load)
    best = _MARGIN * useful / (seconds * factor(load.rows))
    taken: list[int] = []
    enough = 0
    likeliest = merge(
        *([(-chance, number) for chance in one.chances] for number, one in enumerate(candidates))
    )
    for missed, number in islice(likeliest, max(0, most)):
        cost = price.row_s + price.pair_s * candidates[number].context
        if -missed * seconds < _HOPELESS * cost * useful:
            break
        taken.append(number)
        useful -= missed
        seconds += cost
        rate = useful / (seconds * factor(load.rows + len(taken)))
        if rate > best:
            best, enough = rate, len(taken)
    chosen = Counter(taken[:enough])
    return [chosen[number] for number in range(len(candidates))]
