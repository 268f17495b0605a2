"""Picks device, types, attention backend and context length for a model, or says why not."""

from dataclasses import dataclass

import torch

from engine.config import Dtype, EngineConfig, KvDtype
from engine.errors import ConfigError
from engine.files.model_spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What `auto` stood for."""

    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    attention: str
    max_model_len: int  # tokens


def resolve(spec: ModelSpec, config: EngineConfig) -> Resolved:
    """Resolve a config on this machine.

    On the CPU `auto` is float32: stock torch kernels gain little from 16 bit there and lose
    equality with the float32 reference. On CUDA it is bfloat16. KV has the model's type.

    Raises:
        ConfigError: the device is not there, `max_model_len` is more than the model has, or KV is
            wanted in int8, which the native kernels alone have.
    """
    if config.max_model_len > spec.max_position:
        raise ConfigError(
            "max_model_len",
            config.max_model_len,
            f"0 (what the model has) to {spec.max_position} tokens",
        )
    device = _device(config)
    dtype = _dtype(config.dtype, torch.bfloat16 if device.type == "cuda" else torch.float32)
    return Resolved(
        device=device,
        dtype=dtype,
        kv_dtype=_kv_dtype(config.kv_cache_dtype, dtype),
        attention="torch",
        max_model_len=config.max_model_len or spec.max_position,
    )


def _device(config: EngineConfig) -> torch.device:
    if config.device == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda")
    if config.device == "cuda":
        raise ConfigError("device", "cuda", "cpu or auto: this torch finds no CUDA device")
    return torch.device("cpu")


def _kv_dtype(name: KvDtype, automatic: torch.dtype) -> torch.dtype:
    if name == "int8":
        raise ConfigError(
            "kv_cache_dtype", name, "auto, float32, bfloat16 or float16 where torch runs the model"
        )
    return _dtype(name, automatic)


def _dtype(name: Dtype, automatic: torch.dtype) -> torch.dtype:
    match name:
        case "auto":
            return automatic
        case "float32":
            return torch.float32
        case "bfloat16":
            return torch.bfloat16
        case "float16":
            return torch.float16
