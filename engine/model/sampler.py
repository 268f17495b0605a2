"""Samples tokens from logits. Pure.

A sample depends on one row, its settings and its index only; with penalties, on the ids before it,
too.

Randomness is counter-based (Philox, Salmon et al. 2011, "Parallel random numbers: as easy as
1, 2, 3"), keyed by the seed and counted by the output index. It has no state, so a preempted,
recomputed or differently batched turn samples the same tokens.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engine.ipc.messages import Sampling
from engine.kv.step import NOT_FINITE, OneSample

if TYPE_CHECKING:
    from torch import Tensor

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def sample(logits: "Tensor", wanted: Sequence[OneSample]) -> list[int]:
    """Sample one token id per row; `NOT_FINITE` for a row that holds NaN or infinity.

    Such a row results from damaged weights, or a type too narrow for them. Other rows are valid.

    Args:
        logits: [rows, vocab].
        wanted: one per row. `temperature` 0 takes the highest logit, at ties the lower id.
    """
    import torch  # here: the native runner does not need it

    lowest, highest = torch.aminmax(logits, dim=-1)
    finite: list[bool] = (torch.isfinite(lowest) & torch.isfinite(highest)).tolist()
    # argmax takes the first of equal values
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    drawn = [
        row
        for row, at in enumerate(wanted)
        if finite[row] and (at.sampling.temperature or at.counts or at.sampling.logit_bias)
    ]
    if drawn:
        scores = logits[drawn].cpu()  # in one copy: each copy from a device waits for it
        for row, row_scores in zip(drawn, scores, strict=True):
            tokens[row] = draw(row_scores.double().numpy(), wanted[row])
    pairs = zip(tokens, finite, strict=True)
    return [token if is_finite else NOT_FINITE for token, is_finite in pairs]


def draw(scores: Floats, at: OneSample) -> int:
    """Sample one token id from finite logits [vocab]."""
    scores = adjusted(scores, at)
    if at.sampling.temperature == 0:
        return int(scores.argmax())  # the first of equal values
    return _draw(scores, at.sampling, uniform(at.sampling.seed, at.output_index))


def adjusted(scores: Floats, at: OneSample) -> Floats:
    """Logits [vocab] after penalties, then bias. Without either the argument itself."""
    sampling = at.sampling
    if at.counts:
        scores = scores.copy()
        ids, in_reply = at.counts.after(at.after)
        some = scores[ids]
        some = np.where(
            some > 0, some / sampling.repetition_penalty, some * sampling.repetition_penalty
        )
        some -= sampling.frequency_penalty * in_reply + sampling.presence_penalty * (in_reply > 0)
        scores[ids] = some
    if sampling.logit_bias:
        scores = scores.copy()
        for token, bias in sampling.logit_bias:
            scores[token] += bias
    return scores


def uniform(seed: int, index: int) -> float:
    """Return the random number in [0, 1), 53 bits, of a seed and an output index."""
    bits = np.random.Philox(key=seed % 2**128, counter=index).random_raw()
    return float(bits >> 11) * 2.0**-53


def _draw(scores: Floats, sampling: Sampling, at: float) -> int:
    """Invert the cumulative distribution of the candidates, in their stable order, at `at`."""
    ids, weights = candidates(scores, sampling)
    sums = np.cumsum(weights)
    # rounding may make the product equal to the sum, and the place one too large
    place = np.searchsorted(sums, at * sums[-1], side="right")
    return int(ids[min(place, len(ids) - 1)])


def candidates(scores: Floats, sampling: Sampling) -> tuple[Ints, Floats]:
    """Return the ids that may be sampled and their weights (not normalised, none is 0).

    Temperature applies first, then top_k, then top_p to the remaining ids, then min_p, as in
    transformers. Ids are in rising order if none is removed, else by falling weight, at ties the
    lower id first.
    """
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the highest to exp(-inf)
        weights = np.exp((scores - scores.max()) / sampling.temperature)
    ids = np.flatnonzero(weights)
    if 0 < sampling.top_k < len(ids):
        ids = _top_k(ids, weights, sampling.top_k)
    if sampling.top_p < 1:
        ids = _top_p(ids, weights, sampling.top_p)
    ids = ids[weights[ids] >= sampling.min_p]  # the highest weight is 1
    return ids, weights[ids]


def _top_k(ids: Ints, weights: Floats, top_k: int) -> Ints:
    least = np.partition(weights[ids], -top_k)[-top_k]
    return _falling(ids[weights[ids] >= least], weights)[:top_k]


def _top_p(ids: Ints, weights: Floats, top_p: float) -> Ints:
    """Keep the fewest highest tokens whose share reaches top_p."""
    total = weights[ids].sum()
    # All tokens below this bound together weigh less than top_p removes, so none of them is kept
    # and most of a vocabulary need not be sorted.
    bound = (1 - top_p) * total / len(ids)
    ids = _falling(ids[weights[ids] >= bound], weights)
    enough = np.searchsorted(np.cumsum(weights[ids]), top_p * total)
    return ids[: enough + 1]


def _falling(ids: Ints, weights: Floats) -> Ints:
    return ids[np.argsort(-weights[ids], kind="stable")]
