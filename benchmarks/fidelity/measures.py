"""Distances between what contexts predict, and their statistics. Pure."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from benchmarks.quality.measures import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """How one context's predictions differ from another's: means over a reply's tokens.

    `divergence` is KL(reference || other) in nats, over the whole vocabulary.
    """

    divergence: float
    same_top: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRow:
    """The reply of one turn after a trim, teacher-forced.

    `trims` so far; `since_trim` turns ago was the last one, 0: in this turn. `tokens` predicted,
    the end of the turn among them. `nats`: of each context the mean of -log p of these tokens.
    """

    chat: int
    language: str
    trims: int
    since_trim: int
    tokens: int
    pairs: Mapping[str, Pair]
    nats: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a context answers to a question: whether the greedy reply has the word.

    `probability` and `rank` (0: the likeliest of the vocabulary) are those of the word behind the
    start of the right answer.
    """

    said: bool
    probability: float
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRow:
    """One question after a trim. `kept`: the turn that told the answer is in the kept text."""

    chat: int
    language: str
    trims: int
    kept: bool
    word: str
    answers: Mapping[str, Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The mean over all tokens; of the single replies the median, and the worst."""

    mean: float
    median: float
    worst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """A group of replies, compared by one pair."""

    replies: int
    tokens: int
    divergence: Spread
    same_top: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """Shares of the questions answered, and the probability of the word."""

    questions: int
    said: float
    likeliest: float
    median_probability: float
    mean_nats: float


def log_probs(logits: Floats) -> Floats:
    """Log-probabilities [positions, vocab] of logits [positions, vocab]."""
    lowered = logits - logits.max(axis=1, keepdims=True)
    sums = np.exp(lowered).sum(axis=1, keepdims=True, dtype=np.float64)
    result: Floats = lowered - np.log(sums).astype(np.float32)
    return result


def compare(reference: Floats, other: Floats) -> Pair:
    """Compare log-probabilities [positions, vocab]."""
    each = (np.exp(reference) * (reference - other)).sum(axis=1, dtype=np.float64)
    same: npt.NDArray[np.bool_] = reference.argmax(axis=1) == other.argmax(axis=1)
    return Pair(divergence=float(each.mean()), same_top=float(same.mean()))


def nats(found: Floats, following: Sequence[int]) -> float:
    """Mean of -log p of the tokens that follow each position of log-probabilities `found`."""
    return -float(found[np.arange(len(found)), following].mean(dtype=np.float64))


def answer(found: Floats, word: int, *, said: bool) -> Answer:
    """What log-probabilities [vocab] say of a word."""
    return Answer(
        said=said,
        probability=float(np.exp(found[word])),
        rank=int((found > found[word]).sum()),
    )


def distance(rows: Sequence[TurnRow], pair: str) -> Distance:
    """Summarise one pair over replies, of which there is at least one."""
    return Distance(
        replies=len(rows),
        tokens=sum(row.tokens for row in rows),
        divergence=_spread(rows, lambda row: row.pairs[pair].divergence, worst=max),
        same_top=_spread(rows, lambda row: row.pairs[pair].same_top, worst=min),
    )


def perplexity(rows: Sequence[TurnRow], context: str) -> float:
    """Perplexity of the reference replies in one context, over all their tokens."""
    return math.exp(_mean(rows, lambda row: row.nats[context]))


def by_chat(rows: Sequence[TurnRow]) -> list[TurnRow]:
    """One row per chat: the means over the tokens of all its replies, its last trim."""
    chats: dict[int, list[TurnRow]] = {}
    for row in rows:
        chats.setdefault(row.chat, []).append(row)
    return [_merged(found) for found in chats.values()]


def groups(rows: Sequence[TurnRow]) -> dict[str, list[TurnRow]]:
    """The rows, and parts of them that may differ; none of them empty."""
    found = {
        "all replies": list(rows),
        "in the turn that trims": [row for row in rows if row.since_trim == 0],
        "in later turns": [row for row in rows if row.since_trim > 0],
        "after 1 trim": [row for row in rows if row.trims == 1],
        "after 2 to 4": [row for row in rows if 2 <= row.trims <= 4],
        "after 5 and more": [row for row in rows if row.trims >= 5],
    }
    for language in sorted({row.language for row in rows}):
        found[language] = [row for row in rows if row.language == language]
    found["whole chats"] = by_chat(rows)
    return {name: some for name, some in found.items() if some}


def places(rows: Sequence[ProbeRow]) -> dict[str, list[ProbeRow]]:
    """The questions by where the answer was told; none of them empty."""
    kept = [row for row in rows if row.kept]
    found = {"kept text": kept}
    for language in sorted({row.language for row in kept}):
        found[f"kept text, {language}"] = [row for row in kept if row.language == language]
    found["text just dropped"] = [row for row in rows if not row.kept]
    return {name: some for name, some in found.items() if some}


def recall(rows: Sequence[ProbeRow], context: str) -> Recall:
    """Summarise one context's answers, of which there is at least one."""
    answers = [row.answers[context] for row in rows]
    return Recall(
        questions=len(answers),
        said=statistics.mean(one.said for one in answers),
        likeliest=statistics.mean(one.rank == 0 for one in answers),
        median_probability=statistics.median(one.probability for one in answers),
        mean_nats=statistics.mean(-math.log(max(one.probability, 1e-30)) for one in answers),
    )


def only_one(rows: Sequence[ProbeRow], one: str, other: str) -> tuple[int, int]:
    """Questions for which the word is the likeliest in one of two contexts and not in the other."""
    right = [(row.answers[one].rank == 0, row.answers[other].rank == 0) for row in rows]
    return right.count((True, False)), right.count((False, True))


def _spread(
    rows: Sequence[TurnRow],
    value: Callable[[TurnRow], float],
    *,
    worst: Callable[[Sequence[float]], float],
) -> Spread:
    values = [value(row) for row in rows]
    return Spread(mean=_mean(rows, value), median=statistics.median(values), worst=worst(values))


def _mean(rows: Sequence[TurnRow], value: Callable[[TurnRow], float]) -> float:
    return sum(row.tokens * value(row) for row in rows) / sum(row.tokens for row in rows)


def _merged(rows: Sequence[TurnRow]) -> TurnRow:
    def pair(name: str) -> Pair:
        return Pair(
            divergence=_mean(rows, lambda row: row.pairs[name].divergence),
            same_top=_mean(rows, lambda row: row.pairs[name].same_top),
        )

    def nats_of(name: str) -> float:
        return _mean(rows, lambda row: row.nats[name])

    last = rows[-1]
    return replace(
        last,
        tokens=sum(row.tokens for row in rows),
        pairs={name: pair(name) for name in last.pairs},
        nats={name: nats_of(name) for name in last.nats},
    )
