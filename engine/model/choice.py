"""Selects the path that runs a model: native kernels where supported, torch elsewhere."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from engine.config import EngineConfig
from engine.files.model_spec import ModelSpec
from engine.model.kernels.library import LibraryMissingError
from engine.model.native import NativeModel, prepare_native_model
from engine.planning.native_sizes import why_not_native
from engine.planning.offload_sizes import offload_is_torchs

if TYPE_CHECKING:
    from engine.model.runner import LoadedModel

AnyModel: TypeAlias = "NativeModel | LoadedModel"

_CUDA_DEVICE = Path("/dev/nvidiactl")  # the driver's control device: without it torch is not asked

_log = logging.getLogger(__name__)


def prepare(spec: ModelSpec, config: EngineConfig) -> AnyModel:
    """Load a model on the fastest path that it and the config allow.

    With `device=auto` torch runs the model if it finds a CUDA device. Torch, which takes a second
    to import, is imported only to run the model, or where there is an NVIDIA driver.

    Raises:
        ModelFileError: a tensor is missing, has the wrong shape or an unknown type.
        ConfigError: the device, a dtype, offloaded layers or the attention backend are not
            supported here.
    """
    model = _prepared(spec, config)
    _log.info("attention %s: %s", model.attention, model.attention_reason)
    return model


def _prepared(spec: ModelSpec, config: EngineConfig) -> AnyModel:
    cuda = _cuda(config)
    reason = why_not_native(spec, config) or cuda
    if reason is None:
        offload_is_torchs(config.weights_offload_layers)
        try:
            return prepare_native_model(spec, config)
        except LibraryMissingError as error:
            reason = f"the native kernels were not built ({error})"
    from engine.model.runner import prepare_model

    model = prepare_model(spec, config, why_not_native=reason)
    if cuda is not None or _was_chosen(config):
        _log.info("torch runs the model: %s", reason)
    else:
        _log.warning("%s: slower torch operations are used instead", reason)
    return model


def _was_chosen(config: EngineConfig) -> bool:
    """Whether the settings request torch. Otherwise it is a fallback."""
    return (
        config.device == "cuda"
        or config.attention_backend not in ("auto", "native")
        or config.dtype in ("float32", "float16")
    )


def _cuda(config: EngineConfig) -> str | None:
    if config.device != "auto" or config.attention_backend == "native" or not _CUDA_DEVICE.exists():
        return None
    import torch

    if torch.cuda.is_available():
        return "device=auto on a machine with a CUDA device"
    _log.warning("device=auto: there is an NVIDIA driver, but this torch finds no CUDA device")
    return None
