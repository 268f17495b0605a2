"""Which layers stay in main memory, and what their buffers take. Pure."""

from engine.errors import ConfigError

BUFFERS = 2  # on the device: one that is computed with, one that is copied into

_ALIGNMENT = 256  # as torch's allocators align tensors


def check_offload(num_layers: int, count: int) -> None:
    """Refuse to offload more layers than there are, or so few that their buffers take as much.

    Raises:
        ConfigError: says how many can be.
    """
    if count and not BUFFERS < count <= num_layers:
        most = f", or {BUFFERS + 1} to {num_layers} layers" if num_layers > BUFFERS else ""
        why = f"the model has {num_layers}, and buffers for {BUFFERS} stay on the device"
        raise ConfigError("weights_offload_layers", count, f"0 (none){most}: {why}")


def offload_is_torchs(count: int) -> None:
    """Refuse to offload layers where the native kernels run the model.

    Raises:
        ConfigError: `count` is not 0.
    """
    if count:
        raise ConfigError(
            "weights_offload_layers",
            count,
            "0 on the native kernels, whose weights lie in main memory; device=cuda takes it, "
            "and so does attention_backend=torch",
        )


def offloaded_layers(num_layers: int, count: int) -> frozenset[int]:
    """Return which layers: evenly spaced, so that a copy has as many layers' time as can be."""
    return frozenset((place + 1) * num_layers // count - 1 for place in range(count))


def aligned(num_bytes: int) -> int:
    """Return what a tensor takes in a layer that is packed into one run of bytes."""
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
