"""A tiny random model in a safetensors folder, as transformers would save it. No torch."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


def write_tiny_model(folder: Path, family="llama", *, seed=0, **changes):
    """Families differ as in transformers: biases (qwen2), norms of q and k (qwen3), a window."""
    config = {
        "architectures": [
            {
                "llama": "LlamaForCausalLM",
                "qwen2": "Qwen2ForCausalLM",
                "qwen3": "Qwen3ForCausalLM",
                "mistral": "MistralForCausalLM",
            }[family]
        ],
        "vocab_size": 203,
        "hidden_size": 72,
        "intermediate_size": 100,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": family != "mistral",
        **({"sliding_window": 40} if family == "mistral" else {}),
        **changes,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_tensors(config, family, seed), folder / "model.safetensors")
    return folder


def _tensors(config, family, seed):
    rng = np.random.default_rng(seed)
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim

    def matrix(rows, columns):
        return (rng.standard_normal((rows, columns)) * columns**-0.5).astype(np.float32)

    def vector(size):
        return (1 + 0.1 * rng.standard_normal(size)).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": matrix(config["vocab_size"], hidden) * 4,
        "model.norm.weight": vector(hidden) * 2,
    }
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(config["vocab_size"], hidden) * 4
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        attention = prefix + "self_attn."
        tensors |= {
            prefix + "input_layernorm.weight": vector(hidden),
            prefix + "post_attention_layernorm.weight": vector(hidden),
            attention + "q_proj.weight": matrix(queries, hidden) * 2,
            attention + "k_proj.weight": matrix(keys, hidden) * 2,
            attention + "v_proj.weight": matrix(keys, hidden),
            attention + "o_proj.weight": matrix(hidden, queries),
            prefix + "mlp.gate_proj.weight": matrix(inner, hidden),
            prefix + "mlp.up_proj.weight": matrix(inner, hidden),
            prefix + "mlp.down_proj.weight": matrix(hidden, inner),
        }
        if family == "qwen2" or config.get("attention_bias"):
            for name, size in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
                tensors[f"{attention}{name}.bias"] = vector(size) - 1
        if config.get("attention_bias"):
            tensors[attention + "o_proj.bias"] = vector(hidden) - 1
        if family == "qwen3":
            tensors |= {
                attention + "q_norm.weight": vector(dim),
                attention + "k_norm.weight": vector(dim),
            }
    return tensors
