"""Distances between two models' next-token distributions, and between their replies. Pure.

Log-probabilities of the reference are kept as llama.cpp's `llama-perplexity --kl-divergence-base`
keeps them, and distances are computed as it computes them, so that its numbers and ours are of one
kind: 16 bits over the 16 below the largest logit; tokens whose log-probability in the reference is
-16 or less are left out of the divergence.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint16]

SPAN = 16.0  # how far below the largest logit, or below 0, the reference is looked at
_HEADER = 4  # words: the scale and the least log-probability as float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Distances:
    """One number per position."""

    divergence: npt.NDArray[np.float64]  # KL(reference || model), in nats
    same_top: npt.NDArray[np.bool_]
    surprise: npt.NDArray[np.float64]  # -log p of the token that follows, in nats


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Means over positions; `divergence_error` is the standard error of its mean."""

    divergence: float
    divergence_error: float
    same_top: float
    perplexity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How replies compare with the reference's."""

    equal: float  # share of replies
    mean_prefix: float  # tokens until the first difference, or the end


def pack(logits: Floats) -> Words:
    """Return the reference's rows [positions, words]; words: header, then a word per token."""
    largest = logits.max(axis=1)
    least = np.maximum(logits.min(axis=1), largest - np.float32(SPAN))
    log_sum = np.log(np.exp(logits - largest[:, None]).sum(axis=1, dtype=np.float64))
    scales = (largest - least) / np.float32(65535)
    vocab = logits.shape[1]
    rows = np.zeros((len(logits), row_words(vocab)), dtype=np.uint16)
    header = np.stack((scales, least - largest - log_sum), axis=1).astype(np.float32)
    rows[:, :_HEADER] = header.view(np.uint16)
    steps = np.rint(np.maximum(logits - least[:, None], 0) / scales[:, None])
    rows[:, _HEADER : _HEADER + vocab] = steps.astype(np.uint16)
    return rows


def row_words(vocab: int) -> int:
    """Words of one packed row."""
    return _HEADER + vocab + vocab % 2


def unpack(rows: Words, vocab: int) -> Floats:
    """Return the reference's log-probabilities [positions, vocab]."""
    header = np.ascontiguousarray(rows[:, :_HEADER]).view(np.float32)
    steps = rows[:, _HEADER : _HEADER + vocab].astype(np.float32)
    result: Floats = header[:, :1] * steps + header[:, 1:]
    return result


def compare(reference: Words, logits: Floats, following: npt.NDArray[np.int32]) -> Distances:
    """Compare rows [positions, vocab] with the reference's; `following` [positions] came next."""
    theirs = unpack(reference, logits.shape[1])
    shifted = logits - logits.max(axis=1, keepdims=True)
    ours = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float64))
    weights = np.where(theirs > -SPAN, np.exp(theirs), 0)
    return Distances(
        divergence=(weights * (theirs - ours)).sum(axis=1, dtype=np.float64),
        same_top=theirs.argmax(axis=1) == logits.argmax(axis=1),
        surprise=-ours[np.arange(len(ours)), following].astype(np.float64),
    )


def summarize(parts: Iterable[Distances]) -> Quality:
    """Average over all positions."""
    parts = list(parts)
    divergence = np.concatenate([part.divergence for part in parts])
    return Quality(
        divergence=float(divergence.mean()),
        divergence_error=float(divergence.std() / np.sqrt(max(len(divergence) - 1, 1))),
        same_top=float(np.concatenate([part.same_top for part in parts]).mean()),
        perplexity=float(np.exp(np.concatenate([part.surprise for part in parts]).mean())),
    )


def agree(reference: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]) -> Agreement:
    """Compare replies, ids each, with the reference's to the same prompts."""
    pairs = list(zip(reference, replies, strict=True))
    prefixes = [
        sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*pair, strict=False)))
        for pair in pairs
    ]
    return Agreement(
        equal=sum(list(ours) == list(theirs) for theirs, ours in pairs) / len(pairs),
        mean_prefix=sum(prefixes) / len(prefixes),
    )
