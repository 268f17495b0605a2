"""Layers in main memory that are copied to the device ahead of their use. Loop thread only.

Two buffers on the device are used in turn. While one layer is computed, a copy stream fills the
other buffer with the next one. Events keep the order: a buffer is overwritten after all work that
reads it, and read after its copy. The first layer follows the last, so that a step finds its first
layers on the device.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from engine.device.protocol import Device, DeviceEvent
from engine.model.weights.layers import LayerWeights
from engine.planning.offload_sizes import BUFFERS, aligned


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLayer:
    """A layer's tensors in one run of bytes of main memory; `weights` are views of `data`."""

    data: Tensor
    weights: LayerWeights

    def views(self, buffer: Tensor) -> LayerWeights:
        """Return the layer as views of the first bytes of another buffer."""
        return _laid_out(self.weights, buffer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ahead:
    """A layer that is being copied to a buffer, or has been, and was not used yet."""

    layer: int
    buffer: int
    copied: DeviceEvent


class OffloadedLayers:
    """Some layers on the device, the others packed in main memory. Implements Layers."""

    def __init__(
        self,
        device: Device,
        resident: Mapping[int, LayerWeights],
        packed: Mapping[int, PackedLayer],
    ) -> None:
        self._compute = device.compute
        self._resident = resident
        self._packed = packed
        self._order = sorted(packed)
        self._copies = device.stream()
        size = max(len(layer.data) for layer in packed.values())
        self._buffers = [device.zeros(size) for _ in range(BUFFERS)]
        self._views = {
            (layer, place): one.views(buffer)
            for layer, one in packed.items()
            for place, buffer in enumerate(self._buffers)
        }
        self._ahead: deque[_Ahead] = deque()
        self._begin(0)

    @property
    def num_bytes(self) -> int:
        """See Layers: the resident layers and the buffers."""
        resident = (tensor for layer in self._resident.values() for tensor in layer.tensors())
        return sum(tensor.nbytes for tensor in (*self._buffers, *resident))

    def walk(self, count: int | None = None) -> Iterator[LayerWeights]:
        """See Layers."""
        total = len(self._resident) + len(self._packed)
        for layer in range(total if count is None else min(count, total)):
            if layer in self._resident:
                yield self._resident[layer]
                continue
            if not self._ahead or self._ahead[0].layer != layer:
                # the previous step ended early
                self._begin(self._order.index(layer))
            here = self._ahead.popleft()
            self._compute.wait(here.copied)
            yield self._views[layer, here.buffer]
            self._fetch(self._after(layer, BUFFERS), here.buffer)

    def _begin(self, first: int) -> None:
        """Fetch a layer and its successor, replacing the contents of the buffers."""
        self._ahead.clear()
        for place in range(BUFFERS):
            self._fetch(self._order[(first + place) % len(self._order)], place)

    def _fetch(self, layer: int, buffer: int) -> None:
        """Copy a layer, after all work that was enqueued so far and may read the buffer."""
        self._copies.wait(self._compute.record())
        data = self._packed[layer].data
        self._copies.copy(self._buffers[buffer][: len(data)], data)
        self._ahead.append(_Ahead(layer=layer, buffer=buffer, copied=self._copies.record()))

    def _after(self, layer: int, distance: int) -> int:
        return self._order[(self._order.index(layer) + distance) % len(self._order)]


def pack(layer: LayerWeights, device: Device) -> PackedLayer:
    """Copy a layer's tensors into one run of pinned bytes.

    Raises:
        MemoryError: this much can't be pinned.
    """
    data = device.pinned(sum(aligned(tensor.nbytes) for tensor in layer.tensors()))
    weights = _laid_out(layer, data)
    for target, source in zip(weights.tensors(), layer.tensors(), strict=True):
        target.copy_(source)
    return PackedLayer(data=data, weights=weights)


def _laid_out(layer: LayerWeights, buffer: Tensor) -> LayerWeights:
    """Return views of a buffer with the shapes and types of a layer's tensors."""
    end = 0

    def place(tensor: Tensor) -> Tensor:
        nonlocal end
        start, end = end, end + aligned(tensor.nbytes)
        return buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    return layer.moved(place)
