"""Decides how many guessed tokens a step checks beside the true ones. Pure.

A checked guess costs one row of a step and, when it comes true, saves one row of a later step and
that row's part of reading the weights. So guesses are worth it in small batches and in text that
repeats itself. Every guess is judged by the token that is drawn, checked or not, so that where
guessing fails nothing is spent on finding out whether it still does.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import merge
from itertools import islice
from typing import NamedTuple

from engine.ngram import NgramGuess
from engine.step_cost import StepLoad, StepPrice

_MEMORY = 0.1  # weight of the last guess among all before it
_MARGIN = 1.1  # drafts must promise so much more: prices and chances are estimates
_HOPELESS = 0.5  # a row that promises so much less than it costs on the line: no factor helps it


class Chances:
    """How often the guesses of one turn come true.

    `fresh`: the first guess from a new place. `going`: a guess after a true one from its place.
    """

    def __init__(self) -> None:
        self.fresh = 0.3
        self.going = 0.7

    def note(self, *, true: bool, run: int) -> None:
        """A guess after `run` true ones from its place was true or not."""
        if run:
            self.going += _MEMORY * (true - self.going)
        else:
            self.fresh += _MEMORY * (true - self.fresh)

    def of(self, run: int, count: int) -> Iterable[float]:
        """Chances that the first, the first two, ... of `count` guesses are true."""
        chance = self.going if run else self.fresh
        for _ in range(count):
            yield chance
            chance *= self.going


class TurnGuesses:
    """What is guessed of one turn's reply, and how guessing has fared."""

    def __init__(self, ids: Sequence[int]) -> None:
        """`ids`: the whole context, up to the last token drawn."""
        self._ngram = NgramGuess(ids)
        self._chances = Chances()

    def learn(self, tokens: Sequence[int]) -> None:
        """These tokens were drawn next."""
        for token in tokens:
            run = self._ngram.run
            true = self._ngram.push(token)
            if true is not None:
                self._chances.note(true=true, run=run)

    def chances(self, count: int) -> list[float]:
        """Chances that the first, the first two, ... of up to `count` guesses are true."""
        return list(self._chances.of(self._ngram.run, count)) if self._ngram.exists else []

    def tokens(self, count: int) -> list[int]:
        """The next `count` tokens as guessed."""
        return self._ngram.tokens(count)


class Candidate(NamedTuple):
    """A sequence that draws one token: `chances` of up to so many guesses, falling.

    `context`: tokens that a guess attends to.
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
    """Return how many guesses of each candidate a step of `load` should check, `most` in all.

    Likeliest first, as many as bring the most useful rows per second; `factor` corrects the price
    of a step by its number of rows.
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
