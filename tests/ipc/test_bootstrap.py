"""The whole engine around the default model: in its own process, as the server runs it."""

from pathlib import Path

import pytest

from engine import bootstrap
from engine.bootstrap import build_engine, served_name
from engine.config import EngineConfig
from engine.device.limits import DeviceMemoryState
from engine.errors import ConfigError, ModelFileError
from engine.files.catalog import resolve_model
from engine.ids import SessionId, TurnId
from engine.ipc.messages import Sampling, SetContext, SubmitTurn, TurnDone
from engine.ipc.queries import AuditReport, GetAudit
from engine.ipc.worker_client import WorkerEngine
from engine.text.chat_template import load_chat_format
from engine.text.tokenizer import load_tokenizer
from tests.fakes.fake_device import FakeDevice
from tests.kernels.tiny_model import write_tiny_model
from tests.text import toy

pytestmark = pytest.mark.second

MODEL = "smollm2-135m-instruct"
MIB = 2**20


def test_a_file_or_folder_is_served_under_its_own_name(tmp_path, monkeypatch):
    (tmp_path / "Tiny.Q4_1.gguf").touch()
    assert served_name(str(tmp_path / "Tiny.Q4_1.gguf")) == "Tiny.Q4_1"
    assert served_name(str(tmp_path)) == tmp_path.name
    assert served_name(MODEL) == MODEL
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert served_name(".") == tmp_path.name
    assert served_name("~/Tiny.Q4_1.gguf") == "Tiny.Q4_1"


@pytest.mark.real_model
async def test_the_default_model_answers_from_its_own_process():
    said: list[str] = []
    config = EngineConfig(model=MODEL, kv_cache_memory=64 * MIB, max_num_batched_tokens=64)
    engine = WorkerEngine(config, on_progress=said.append)
    await engine.start()
    try:
        assert engine.info.model == MODEL
        assert engine.info.pool_bytes <= 64 * MIB
        assert engine.info.pool_reason.startswith("as set by --kv-cache-memory")
        assert (engine.info.total_blocks - 1) * 16 >= engine.info.max_model_len
        assert said[0] == f"loading {MODEL}"
        path = resolve_model(MODEL, lambda _step: None)
        chat = load_chat_format(path, load_tokenizer(path))
        session = SessionId("s")
        engine.send(SetContext(session=session, salt=b"", ids=[]))
        # no near-tie: every instruction set answers alike
        question = chat.message("user", "Repeat after me: Paris is a city in France.")
        events = engine.submit(
            SubmitTurn(
                turn=TurnId("t"),
                session=session,
                ids=[*chat.open(None), *question, *chat.generation_prompt],
                close_ids=chat.close_ids,
                stop_ids=chat.stop_ids,
                sampling=Sampling(temperature=0),
                max_output_tokens=16,
            )
        )
        ending = [event async for event in events][-1]
        assert isinstance(ending, TurnDone)
        assert ending.text == "Paris is a city in France."
        report = await engine.ask(GetAudit())
        assert isinstance(report, AuditReport)
        assert report.ok
    finally:
        await engine.stop()


@pytest.mark.real_model
async def test_a_pool_that_can_not_hold_the_asked_context_is_refused_at_start():
    engine = WorkerEngine(EngineConfig(model=MODEL, kv_cache_memory=MIB, max_model_len=1024))
    with pytest.raises(ConfigError, match=r"kv_cache_memory.*65 blocks of 16 tokens"):
        await engine.start()


async def test_a_file_that_is_no_model_is_told(tmp_path: Path):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    engine = WorkerEngine(EngineConfig(model=str(tmp_path / "broken.gguf")))
    with pytest.raises(ModelFileError, match=r"broken\.gguf"):
        await engine.start()


async def test_a_tokenizer_beyond_the_embedding_is_refused_at_start(tmp_path: Path):
    folder = write_tiny_model(tmp_path / "tiny", vocab_size=200)
    toy.write_folder(folder, added={"<|end|>": True}, eos="<|end|>")
    engine = WorkerEngine(EngineConfig(model=str(folder), device="cpu", kv_cache_memory=MIB))
    with pytest.raises(ModelFileError, match="rows for 200"):
        await engine.start()


# --- memory at start ----------------------------------------------------------------------------


class OnCuda:
    """A model as if on a GPU, which says what is measured of it."""

    device = "cuda"
    weights_bytes = 512 * MIB
    kv_bytes_per_block = MIB

    def __init__(self, spec, activation_peak=lambda *_: 64 * MIB):
        self.spec = spec
        self.measure_activation_peak = activation_peak

    def measure_graphs(self):
        return 32 * MIB

    def runner(self, num_blocks):
        raise Planned(num_blocks)


class Planned(Exception):  # noqa: N818 -- ends the start
    """The pool was given so many blocks."""


def out_of_memory(*_args):
    raise MemoryError("CUDA out of memory")


def start_on(monkeypatch, tmp_path, *, prepare=None, activation_peak=None, memory=None, **settings):
    """Start an engine whose model says it is on a GPU with 16 GiB free of 80."""
    folder = write_tiny_model(tmp_path / "tiny", vocab_size=300)
    toy.write_folder(folder)
    facts = DeviceMemoryState(free=16 * 2**30, total=80 * 2**30, reserved=2**30)
    device = FakeDevice(facts=facts)
    device.index = 0
    device.memory = memory or device.memory
    peak = {"activation_peak": activation_peak} if activation_peak else {}
    monkeypatch.setattr(bootstrap, "prepare", prepare or (lambda spec, _: OnCuda(spec, **peak)))
    monkeypatch.setattr(bootstrap, "CudaDevice", lambda: device)
    build_engine(EngineConfig(model=str(folder), **settings), lambda _event: None)


def test_a_gpus_pool_is_what_its_limit_leaves(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_DEVICE_MEMORY_LIMIT_0", "4g")
    with pytest.raises(Planned) as planned:
        start_on(monkeypatch, tmp_path)
    free = (4096 - 1024 - 512 - 1) * MIB  # less weights' allocator, CUDA itself, the spare block
    expected = (int((free + 512 * MIB) * 0.9) - (512 + 64 + 32) * MIB) // MIB
    assert planned.value.args == (expected,)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            {"prepare": out_of_memory},
            r"model must be a model whose weights fit in memory.*CUDA out of memory",
        ),
        ({"activation_peak": out_of_memory}, r"max_num_batched_tokens must be lower: .*got 512\)"),
        (
            {"memory": lambda: (_ for _ in ()).throw(RuntimeError("CUDA error: invalid argument"))},
            r"device must be .*CUDA_DEVICE_MEMORY_LIMIT.*512 MiB: CUDA error: invalid argument",
        ),
        ({"kv_cache_memory": 17 * 2**30}, r"kv_cache_memory must be at most 15.9 GiB.*got \d+\)"),
    ],
)
def test_what_a_gpu_can_not_hold_is_told_with_what_would_work(monkeypatch, tmp_path, how, words):
    with pytest.raises(ConfigError, match=words):
        start_on(monkeypatch, tmp_path, **how)


def test_a_gpu_that_does_not_tell_its_memory_is_refused_before_graphs_are_measured(
    monkeypatch, tmp_path
):
    def unknown(*_args):
        raise RuntimeError("CUDA error: invalid argument")

    monkeypatch.setattr(OnCuda, "measure_graphs", unknown)
    with pytest.raises(ConfigError, match=r"device must be .*CUDA_DEVICE_MEMORY_LIMIT"):
        start_on(monkeypatch, tmp_path, memory=unknown)
