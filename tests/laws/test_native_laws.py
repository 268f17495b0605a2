"""The laws on the native kernels: sums run in one order wherever KV lies, so equal means every bit.

The engine under test has two threads; the dense replies come from one.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar
from zlib import crc32

import pytest
from gguf import GGMLQuantizationType as Kind

from engine.config import EngineConfig, KvDtype
from engine.files.spec_reader import read_spec
from engine.kv.step import ModelRunner, SequenceStep
from engine.model.kernels.library import ISA_VARIABLE, load_library
from engine.model.native import NativeModel, NativeRunner, prepare_native_model
from engine.planning.native_sizes import BLOCK_TOKENS
from tests.kernels.test_tensors import write_gguf
from tests.kernels.tiny_model import write_tiny_model
from tests.laws.backend import DenseBackend
from tests.laws.engine_laws import EngineLaws
from tests.processors import each_isa
from tests.soak import SOAK

_DENSE_BLOCKS = 40


class EveryBit:
    """Draws a checksum of the logits: one bit that differs gives another token."""

    def __init__(self, runner: NativeRunner) -> None:
        self.runner = runner
        self.copy_block = runner.copy_block
        self.read_block = runner.read_block
        self.write_block = runner.write_block
        self.zero_block = runner.zero_block

    def execute(self, batch: Sequence[SequenceStep]) -> list[int]:
        places = [at for one in batch for at in one.samples]
        return [
            crc32(row.tobytes(), at.output_index) % NativeBackend.vocab_size
            for row, at in zip(self.runner.logits(batch), places, strict=True)
        ]


class NativeBackend(DenseBackend):
    """Serves after `load`: the kernels are built, and the model written, when the tests run."""

    vocab_size = 203
    stop_id = 7  # a first reply of three tokens or more: a law rewinds to its middle
    steps = 10_000 if SOAK else 200
    block_sizes = (BLOCK_TOKENS,)

    def __init__(self, wrap: Callable[[NativeRunner], ModelRunner] | None = None) -> None:
        self._wrap = wrap or (lambda runner: runner)
        self._model: NativeModel

    def load(self, path: Path, library_path: Path, kv_cache_dtype: KvDtype = "auto") -> None:
        spec = read_spec(path)
        config = EngineConfig(model=str(path), device="cpu", kv_cache_dtype=kv_cache_dtype)
        self._model, alone = (
            prepare_native_model(spec, config, threads=threads, library_path=library_path)
            for threads in (2, 1)
        )
        self.dense = self._wrap(alone.runner(_DENSE_BLOCKS))

    @property
    def isa(self) -> str:
        """The instruction set of the loaded model."""
        return self._model.isa

    def runner(self, num_blocks: int, block_size: int) -> ModelRunner:
        assert block_size == BLOCK_TOKENS
        return self._wrap(self._model.runner(num_blocks))


@pytest.fixture(scope="class", params=each_isa())
def isa(request: pytest.FixtureRequest, library_path: Path) -> Iterator[str]:
    """The instruction set that is chosen while a model is prepared; the laws hold on each."""
    name: str = request.param
    if not load_library(library_path).engine_supports(name.encode()):
        pytest.skip(f"the processor has no {name}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ISA_VARIABLE, name)
        yield name


class TestNativeLaws(EngineLaws):
    """bfloat16 throughout."""

    backend: ClassVar = NativeBackend()

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def model(cls, isa: str, tmp_path_factory: pytest.TempPathFactory, library_path: Path) -> None:
        cls.backend.load(write_tiny_model(tmp_path_factory.mktemp("llama")), library_path)
        assert cls.backend.isa == isa


class TestQuantizedNativeLaws(EngineLaws):
    """Weights of four and eight bits, activations of eight, logits compared to the last bit."""

    backend: ClassVar = NativeBackend(EveryBit)
    kv_dtype = "auto"

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def model(cls, isa: str, tmp_path_factory: pytest.TempPathFactory, library_path: Path) -> None:
        path = tmp_path_factory.mktemp("quantized") / "model.gguf"
        kinds = [Kind.Q4_1, Kind.Q8_0, Kind.Q4_0]
        cls.backend.load(write_gguf(path, kinds), library_path, cls.kv_dtype)
        assert cls.backend.isa == isa


class TestInt8KvNativeLaws(TestQuantizedNativeLaws):
    """The same with K and V of eight bits."""

    backend: ClassVar = NativeBackend(EveryBit)
    kv_dtype = "int8"


class TestQuantizedNativeDraftingLaws(TestQuantizedNativeLaws):
    """With drafts, true and untrue, in every step that draws; compared to the last bit."""

    backend: ClassVar = NativeBackend(EveryBit)
    drafting = True
