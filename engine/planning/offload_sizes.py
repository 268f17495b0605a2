"""Choice of the layers that stay in main memory, and sizes of their buffers. Pure."""

from engine.errors import ConfigError

BUFFERS = 2  # on the device: one for the layer in use, one for the next

_ALIGNMENT = 256  # as torch's allocators align tensors


def check_offload(num_layers: int, count: int) -> None:
    """Refuse to offload more layers than the model has, or so few that the buffers take as much.

    Raises:
        ConfigError: the message names the valid numbers.
    """
    if count and not BUFFERS < count <= num_layers:
        most = f", or {BUFFERS + 1} to {num_layers} layers" if num_layers > BUFFERS else ""
        why = f"the model has {num_layers}, and buffers for {BUFFERS} are on the device"
        raise ConfigError("weights_offload_layers", count, f"0 (none){most}, as {why}")


def offload_is_torchs(count: int) -> None:
    """Refuse to offload layers where the native kernels run the model.

    Raises:
        ConfigError: `count` is not 0.
    """
    if count:
        raise ConfigError(
            "weights_offload_layers",
            count,
            "0 on the native kernels, whose weights are in main memory; device=cuda and "
            "attention_backend=torch support it",
        )


def offloaded_layers(num_layers: int, count: int) -> frozenset[int]:
    """Return the offloaded layers: evenly spaced, so that each copy has the most time."""
    return frozenset((place + 1) * num_layers // count - 1 for place in range(count))


def aligned(num_bytes: int) -> int:
    """Return the bytes of a tensor in a packed layer."""
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
