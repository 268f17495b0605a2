"""The whole engine around the default model: in its own process, as the server runs it."""

from pathlib import Path

import pytest

from engine.bootstrap import served_name
from engine.config import EngineConfig
from engine.errors import ConfigError, ModelFileError
from engine.files.catalog import resolve_model
from engine.ids import SessionId, TurnId
from engine.messages import Sampling, SetContext, SubmitTurn, TurnDone
from engine.questions import AuditReport, GetAudit
from engine.text.chat_template import load_chat_format
from engine.text.tokenizer import load_tokenizer
from engine.worker_client import WorkerEngine
from tests.kernels.tiny_model import write_tiny_model
from tests.text import toy

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
        assert engine.info.pool_reason.startswith("as --kv-cache-memory says")
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
