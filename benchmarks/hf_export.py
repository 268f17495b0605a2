"""Writes a GGUF file's dequantised weights as a Hugging Face folder, in bfloat16.

transformers reads configuration and tokenizer out of the file. The weights are read by this
project: transformers would need one more package for them.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from engine.files.spec_reader import read_spec
from engine.model.weights.gguf import GgufTensors

_ROTATED = (".q_proj.", ".k_proj.")


def export_weights(gguf: Path, folder: Path) -> None:
    """Write `config.json`, tokenizer and template, then `model.safetensors`.

    Raises:
        ModelFileError: the file lacks a tensor of its model, or has one of another shape.
    """
    config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]  # transformers types it as Any
    spec = read_spec(gguf)
    with GgufTensors(spec) as tensors, torch.no_grad():
        for name, parameter in model.named_parameters():
            values = tensors.read(name, tuple(parameter.shape))
            if tensors.pairs_interleaved and any(part in name for part in _ROTATED):
                values = in_halves(values, spec.head_dim)
            parameter.copy_(values)
    folder.mkdir(parents=True, exist_ok=True)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    model.save_pretrained(folder)  # last: the file of weights says that all is there


def in_halves(values: Tensor, head_dim: int) -> Tensor:
    """Rows of q or k from GGUF's order of rotated pairs (0, d/2, 1, ...) to that of halves."""
    pairs = values.view(-1, head_dim // 2, 2, *values.shape[1:])
    return pairs.transpose(1, 2).reshape(values.shape)
