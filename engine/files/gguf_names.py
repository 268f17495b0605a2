"""Names of tensors in GGUF files, by their names in transformers. Pure."""

import re

_WHOLE_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER_NAME = re.compile(r"model\.layers\.(\d+)\.(.+)")


def gguf_name(name: str) -> str:
    """Return the GGUF name of a tensor by its name in transformers.

    Raises:
        KeyError: supported models have no such tensor.
    """
    stem, _, kind = name.rpartition(".")
    in_layer = _LAYER_NAME.fullmatch(stem)
    if in_layer is None:
        return f"{_WHOLE_NAMES[stem]}.{kind}"
    return f"blk.{in_layer[1]}.{_LAYER_NAMES[in_layer[2]]}.{kind}"
