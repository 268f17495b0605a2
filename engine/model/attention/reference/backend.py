"""The `torch` attention backend: the reference, and the fallback on every device. Loop thread."""

import torch.nn.functional as F  # noqa: N812 -- torch's own name for it
from torch import Tensor

from engine.files.model_spec import ModelSpec
from engine.model.attention.declaration import Declaration
from engine.model.attention.gather import GatherAttention
from engine.model.layers import Arithmetic


def attend_with_sdpa(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attend with scaled_dot_product_attention; shapes as engine.model.attention.gather says.

    The heads of a group never copy their K and V: with one query each they are folded into the
    query length, otherwise K and V are expanded with stride 0 (`enable_gqa` is 3 to 5 times
    slower on the CPU).
    """
    b, n, heads, dim = queries.shape
    kv_heads = keys.shape[2]
    grouped = queries.view(b, n, kv_heads, heads // kv_heads, dim)
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)  # [b, kv_heads, T, dim]
    if n == 1:
        attended = F.scaled_dot_product_attention(
            grouped[:, 0], keys, values, attn_mask=mask[:, None]
        )
        return attended.reshape(b, 1, heads, dim)
    expanded = (-1, heads // kv_heads, -1, -1)
    attended = F.scaled_dot_product_attention(
        grouped[0].permute(1, 2, 0, 3),  # [kv_heads, group, n, dim]
        keys[0, :, None].expand(expanded),
        values[0, :, None].expand(expanded),
        attn_mask=mask,
    )
    return attended.view(1, heads, n, dim).transpose(1, 2)


def build(spec: ModelSpec, arithmetic: Arithmetic, declaration: Declaration) -> GatherAttention:
    """See engine.model.attention.registry.BackendModule."""
    return GatherAttention(declaration.name, attend_with_sdpa, spec, arithmetic)
