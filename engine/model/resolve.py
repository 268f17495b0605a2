"""Resolves device, types, attention backend and context length of a model."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata

import torch

from engine.config import Dtype, EngineConfig, KvDtype
from engine.errors import ConfigError
from engine.files.model_spec import ModelSpec
from engine.model.attention.declaration import (
    AttentionChoice,
    AttentionRequirements,
    Declaration,
    Version,
    candidate,
    choose_attention,
)
from engine.model.attention.native import native_candidate
from engine.model.attention.registry import declarations
from engine.planning.offload_sizes import check_offload


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Resolved values of `auto` settings."""

    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    attention: AttentionChoice
    max_model_len: int  # tokens


def resolve(spec: ModelSpec, config: EngineConfig, *, why_not_native: str = "") -> Resolved:
    """Resolve a config on this machine.

    `why_not_native` is reported among the reasons for the attention backend.

    On the CPU `auto` is float32: stock torch kernels gain little from 16 bit there and lose
    equality with the float32 reference. On CUDA it is bfloat16. KV has the model's type.

    Raises:
        ConfigError: the device is missing, `max_model_len` exceeds the model's limit, KV is
            requested in int8, which only the native kernels support, the layers can't be offloaded,
            or no attention backend of the requested name supports the model here.
    """
    if config.max_model_len > spec.max_position:
        raise ConfigError(
            "max_model_len",
            config.max_model_len,
            f"0 (the model's limit) to {spec.max_position} tokens",
        )
    check_offload(spec.num_layers, config.weights_offload_layers)
    device = _device(config)
    dtype = _dtype(config.dtype, torch.bfloat16 if device.type == "cuda" else torch.float32)
    kv_dtype = _kv_dtype(config.kv_cache_dtype, dtype)
    known = declarations()
    requirements = AttentionRequirements(
        device_type=device.type,
        capability=torch.cuda.get_device_capability() if device.type == "cuda" else None,
        block_size=config.block_size,
        dtype=dtype_name(dtype),
        kv_dtype=dtype_name(kv_dtype),
        head_dim=spec.head_dim,
        has_windows=any(spec.window_layers),
        installed=_installed(known),
    )
    candidates = [candidate(each, requirements) for each in known]
    if why_not_native:
        candidates.insert(0, native_candidate(why_not_native))
    return Resolved(
        device=device,
        dtype=dtype,
        kv_dtype=kv_dtype,
        attention=choose_attention(config.attention_backend, candidates),
        max_model_len=config.max_model_len or spec.max_position,
    )


def _device(config: EngineConfig) -> torch.device:
    if config.device == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda")
    if config.device == "cuda":
        raise ConfigError("device", "cuda", "cpu or auto, as this torch finds no CUDA device")
    return torch.device("cpu")


def _kv_dtype(name: KvDtype, automatic: torch.dtype) -> torch.dtype:
    if name == "int8":
        raise ConfigError(
            "kv_cache_dtype",
            name,
            "auto, float32, bfloat16, float16 or fp8 where torch runs the model",
        )
    if name == "fp8" or name == "fp8_e4m3":  # noqa: PLR1714 -- mypy narrows by these
        return torch.float8_e4m3fn
    return _dtype(name, automatic)


def dtype_name(dtype: torch.dtype) -> str:
    """Return a type's name in the settings."""
    return str(dtype).removeprefix("torch.")


def _installed(known: Iterable[Declaration]) -> dict[str, Version]:
    """Return the versions of those packages that backends need and that are installed."""
    found = {}
    for name in {package.name for each in known for package in each.packages}:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        # the part before the first letter, as in 4.0.0b36 or 2.8.3.post1
        release = re.split(r"[^\d.]", version, maxsplit=1)[0]
        found[name] = tuple(map(int, re.findall(r"\d+", release)))
    return found


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
