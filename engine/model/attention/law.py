"""The arithmetic of the `law` backend: every sum in one fixed order."""

import torch
from torch import Tensor

from engine.model.fixed_order import fixed_exp, fixed_sum


def attend_in_fixed_order(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attend row by row; shapes as engine.model.attention.gather says.

    A row's result depends on its own visible context in its order, and on nothing else: what is
    masked adds exact zeros at the end of each sum.
    """
    heads, dim = queries.shape[2:]
    group = heads // keys.shape[2]
    keys = keys.repeat_interleave(group, 2).transpose(1, 2)  # [b, heads, T, dim]
    values = values.repeat_interleave(group, 2).transpose(1, 2)
    scaled = queries.transpose(1, 2) * dim**-0.5  # [b, heads, n, dim]
    scores = fixed_sum(scaled[:, :, :, None] * keys[:, :, None]) + mask[:, None]
    weights = fixed_exp(scores - scores.amax(-1, keepdim=True))
    weights = torch.where(mask[:, None] == 0, weights, 0.0)
    totals = fixed_sum(weights)[..., None]
    weighted = weights[..., None] * values[:, :, None]  # [b, heads, n, T, dim]
    return (fixed_sum(weighted.transpose(-1, -2)) / totals).transpose(1, 2)
