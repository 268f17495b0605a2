"""Small random GGUF files. Used by the tests of weights, specs and runner."""

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

HIDDEN, MLP, HEADS, KV_HEADS, DIM, VOCAB, LAYERS = 256, 512, 4, 2, 64, 300, 2


def weights(architecture="llama", seed=0):
    """Tensors by GGUF name, float32, in numpy's order of dimensions."""
    rng = np.random.default_rng(seed)
    shapes = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.{name}.weight": shape
            for name, shape in {
                "attn_norm": (HIDDEN,),
                "attn_q": (HEADS * DIM, HIDDEN),
                "attn_k": (KV_HEADS * DIM, HIDDEN),
                "attn_v": (KV_HEADS * DIM, HIDDEN),
                "attn_output": (HIDDEN, HEADS * DIM),
                "ffn_norm": (HIDDEN,),
                "ffn_gate": (MLP, HIDDEN),
                "ffn_up": (MLP, HIDDEN),
                "ffn_down": (HIDDEN, MLP),
            }.items()
        }
        if architecture == "qwen2":
            shapes |= {
                f"blk.{layer}.attn_q.bias": (HEADS * DIM,),
                f"blk.{layer}.attn_k.bias": (KV_HEADS * DIM,),
                f"blk.{layer}.attn_v.bias": (KV_HEADS * DIM,),
            }
    return {
        name: (rng.standard_normal(shape) * 0.1 + (len(shape) == 1)).astype(np.float32)
        for name, shape in shapes.items()
    }


def raw_blocks(kind, shape, seed=0):
    """Random valid blocks of a type, for those that the package can't quantise to."""
    rng = np.random.default_rng(seed)
    values, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (shape[0], shape[1] // values, size), dtype=np.uint8)
    scale = np.array([0.004], dtype=np.float16).view(np.uint8)
    if kind == Kind.Q4_K:
        blocks[..., 0:2] = scale
        blocks[..., 2:4] = scale
    else:
        blocks[..., -2:] = scale
    return blocks.reshape(shape[0], -1)


def write(path, tensors, kind=Kind.F32, architecture="llama", extra=()):
    """Write a GGUF file; matrices get the type where the package can quantise to it."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    for add in extra:
        add(writer)
    for name, tensor in tensors.items():
        if tensor.ndim == 1 or kind == Kind.F32:
            writer.add_tensor(name, tensor)
        elif kind in (Kind.Q4_K, Kind.Q6_K):
            writer.add_tensor(name, raw_blocks(kind, tensor.shape), raw_dtype=kind)
        else:
            writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
