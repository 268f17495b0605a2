"""flash-attn 2.8, 3 and 4 on the CPU: their signatures, their demands, whole pages read.

Sources: flash_attn 2.8.3.post2 (flash_attn_interface.py, csrc/flash_attn/flash_api.cpp), 3
(hopper/flash_attn_interface.py, hopper/flash_api.cpp), 4.0.0b36 (flash_attn/cute/interface.py).
Types of 16 bit are demanded by the declarations; here any will do, so that sums can be compared.
"""

# ruff: noqa: PLR0917 -- the signatures are the libraries'

from types import ModuleType, SimpleNamespace
from typing import cast

import torch
from torch import Tensor


def paged(q, k, v, table, lengths, starts, window):
    """Read whole pages, as a tile does: scores are masked, weights of 0 meet whatever V holds."""
    out = torch.empty_like(q)
    group, scale = q.shape[1] // k.shape[2], q.shape[2] ** -0.5
    for index, length in enumerate(lengths.tolist()):
        first, end = starts[index].item(), starts[index + 1].item()
        pages = table[index, : -(-length // k.shape[1])].long()
        keys = k[pages].flatten(0, 1).repeat_interleave(group, 1)
        values = v[pages].flatten(0, 1).repeat_interleave(group, 1)
        scores = torch.einsum("nhd,thd->hnt", q[first:end], keys) * scale
        place = torch.arange(length - (end - first), length)[:, None]
        at = torch.arange(len(keys))
        seen = (at <= place) & (at < length)
        if window[0] >= 0:
            seen &= at >= place - window[0]
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        out[first:end] = torch.einsum("hnt,thd->nhd", weights, values)
    return out


def demand(q, k, v, table, *integers: Tensor) -> None:
    assert q.dtype == k.dtype == v.dtype
    assert k.shape == v.shape
    assert table.shape == (len(integers[0]), table.shape[1])
    for tensor in (q, k, v, table):
        assert tensor.stride(-1) == 1
    for tensor in (k, v):  # else the pool would be copied, or refused
        assert all(stride * tensor.element_size() % 16 == 0 for stride in tensor.stride()[:-1])
    for tensor in (table, *integers):
        assert tensor.dtype == torch.int32
        assert tensor.is_contiguous()
    assert q.shape[2] % 8 == 0
    assert q.shape[2] <= 256
    assert ((table >= 0) & (table < len(k))).all(), "kernels prefetch entries"


class Version2:
    """Pages in multiples of 256."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def flash_attn_with_kvcache(
        self, q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None,
        cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, block_table=None,
        softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
        rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False,
    ):  # fmt: skip
        self.calls.append("one")
        assert k_cache.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
        assert causal
        assert q.dim() == 4
        demand(q[:, 0], k_cache, v_cache, block_table, cache_seqlens)
        starts = torch.arange(len(q) + 1)
        return paged(q[:, 0], k_cache, v_cache, block_table, cache_seqlens, starts, window_size)[
            :, None
        ]

    def flash_attn_varlen_func(
        self, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
        softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
        deterministic=False, return_attn_probs=False, block_table=None,
    ):  # fmt: skip
        self.calls.append("many")
        assert k.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
        assert causal
        lengths = cu_seqlens_k.diff()
        assert (max_seqlen_q, max_seqlen_k) == (cu_seqlens_q.diff().max(), lengths.max())
        demand(q, k, v, block_table, lengths, cu_seqlens_q, cu_seqlens_k)
        return paged(q, k, v, block_table, lengths, cu_seqlens_q, window_size)


class Version3:
    """Any page."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def flash_attn_with_kvcache(
        self, q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None,
        cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, page_table=None,
        cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None,
        q_descale=None, k_descale=None, v_descale=None, softmax_scale=None, causal=False,
        window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True,
        scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0,
        return_softmax_lse=False,
    ):  # fmt: skip
        self.calls.append("any")
        assert causal
        assert max_seqlen_q == cu_seqlens_q.diff().max()
        demand(q, k_cache, v_cache, page_table, cache_seqlens, cu_seqlens_q)
        return paged(q, k_cache, v_cache, page_table, cache_seqlens, cu_seqlens_q, window_size)


class Version4:
    """Any page. `hopper`: contexts can't be split."""

    def __init__(self, *, hopper: bool = True) -> None:
        self.hopper = hopper
        self.calls: list[str] = []

    def flash_attn_varlen_func(
        self, q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None,
        max_seqlen_k=None, min_seqlen_k=None, seqused_q=None, seqused_k=None,
        gather_kv_indices=None, page_table=None, softmax_scale=None, causal=False,
        window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None,
        deterministic=False, score_mod=None, score_mod_bwd=None, mask_mod=None,
        block_sparse_tensors=None, aux_tensors=None, aux_scalars=None, return_lse=False,
        scheduler_metadata=None, seqlen_k_per_split=None, disable_scheduler_metadata=False,
        gather_bwd_recompute_p=False, gather_bwd_token_chunk=None,
    ):  # fmt: skip
        self.calls.append("any")
        assert causal
        assert cu_seqlens_k is None, "page_table is not supported with cu_seqlens_k"
        assert not self.hopper or num_splits == 1, "SplitKV not supported on SM 9.0"
        assert max_seqlen_q == cu_seqlens_q.diff().max()
        demand(q, k, v, page_table, seqused_k, cu_seqlens_q)
        return paged(q, k, v, page_table, seqused_k, cu_seqlens_q, window_size), None


def module(library: object) -> ModuleType:
    """What an import of it would give."""
    names = [name for name in dir(library) if name.startswith("flash_attn")]
    functions = {name: getattr(library, name) for name in names}
    return cast("ModuleType", SimpleNamespace(**functions))
