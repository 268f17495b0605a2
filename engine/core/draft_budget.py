"""Drafts by prompt lookup (Saxena 2023), and how many of them a step verifies. Pure.

The draft budget follows the acceptance rate and the cost of a step.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import merge
from itertools import islice
from typing import NamedTuple

from engine.core.step_cost import StepLoad, StepPrice

_LENGTHS = (3, 5)  # tokens that must match; a longer match points to a better place
_ID_BYTES = 4


_DECAY = 0.1  # weight of the last draft in the acceptance rate
_MARGIN = 1.1  # required gain: prices and acceptance rates are estimates
_HOPELESS = 0.5  # below this ratio of gain to linear cost no correction makes a row worth it


class NgramProposer:
    """Proposes the next tokens: a session's ids are searched for the last few of them.

    Searching 8,000 ids takes about 5 µs. A search is needed only after a rejected draft, or where
    there was none.
    """

    def __init__(self, ids: Sequence[int]) -> None:
        # as bytes: CPython searches them backwards in native code
        self._data = bytearray(array("I", ids).tobytes())
        self._place: int | None = None  # byte offset of the predicted id
        self.run = 0  # accepted drafts in a row
        self._search()

    @property
    def exists(self) -> bool:
        """Whether there is a draft."""
        return self._place is not None

    def push(self, token: int) -> bool | None:
        """Add the next token; return whether the draft was right, None when there was none."""
        place, data = self._place, self._data
        new = token.to_bytes(_ID_BYTES, "little")
        data += new
        if place is None:
            self._search()
            return None
        if data[place : place + _ID_BYTES] == new:
            self._place = place + _ID_BYTES
            self.run += 1
            return True
        self.run = 0
        self._search()
        return False

    def tokens(self, count: int) -> list[int]:
        """The next `count` draft tokens; none when there is no draft.

        Beyond the known ids, the draft repeats itself.
        """
        if self._place is None:
            return []
        followed = array("I", bytes(self._data[self._place : self._place + _ID_BYTES * count]))
        period = len(followed)
        return [followed[index % period] for index in range(count)]

    def _search(self) -> None:
        data, self._place = self._data, None
        for length in _LENGTHS:
            wanted = bytes(data[-length * _ID_BYTES :])
            if len(wanted) < length * _ID_BYTES:
                return
            end = len(data) - 1  # otherwise the last ids match themselves
            at = data.rfind(wanted, 0, end)
            while at > 0 and at % _ID_BYTES:  # a match must begin at an id, not inside one
                at = data.rfind(wanted, 0, at + len(wanted) - 1)
            if at < 0 or at % _ID_BYTES:
                return
            self._place = at + len(wanted)


class AcceptanceRates:
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
            self.going += _DECAY * (true - self.going)
        else:
            self.fresh += _DECAY * (true - self.fresh)

    def of(self, run: int, count: int) -> Iterable[float]:
        """Probabilities that the first, the first two, ... of `count` drafts are accepted."""
        probability = self.going if run else self.fresh
        for _ in range(count):
            yield probability
            probability *= self.going


class TurnDrafts:
    """Drafts for one turn's reply, and their acceptance rates."""

    def __init__(self, ids: Sequence[int]) -> None:
        """`ids`: the whole context, up to the last sampled token."""
        self._ngram = NgramProposer(ids)
        self._acceptance = AcceptanceRates()

    def learn(self, tokens: Sequence[int]) -> None:
        """Add the tokens that were sampled next."""
        for token in tokens:
            run = self._ngram.run
            true = self._ngram.push(token)
            if true is not None:
                self._acceptance.note(true=true, run=run)

    def acceptance(self, count: int) -> list[float]:
        """Probabilities that the first, the first two, ... of up to `count` drafts are accepted."""
        return list(self._acceptance.of(self._ngram.run, count)) if self._ngram.exists else []

    def tokens(self, count: int) -> list[int]:
        """The next `count` draft tokens."""
        return self._ngram.tokens(count)


class DraftCandidate(NamedTuple):
    """A sequence that samples one token. `acceptance`: falling acceptance rates of its drafts.

    `context`: tokens that a draft attends to.
    """

    acceptance: Sequence[float]
    context: int


def draft_counts(
    candidates: Sequence[DraftCandidate],
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
        *(
            [(-probability, number) for probability in one.acceptance]
            for number, one in enumerate(candidates)
        )
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
