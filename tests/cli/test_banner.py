import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from engine.ipc.queries import TierInfo
from sessiond.cli.banner import Banner, program_name
from sessiond.settings import Settings
from tests.ipc.loops import INFO

README = Path(__file__).parents[2] / "README.md"
URL = "http://127.0.0.1:8080"


def banner(**console) -> tuple[Banner, io.StringIO]:
    out = io.StringIO()
    return Banner(Console(file=out, highlight=False, **console)), out


def serving(settings: Settings, url: str = URL) -> str:
    shown, out = banner()
    info = msgspec.structs.replace(
        INFO, pool_bytes=4 * 2**30, total_blocks=5000, pool_reason="a quarter of 23 GiB"
    )
    shown.serving(settings, info, url)
    return out.getvalue()


def test_it_says_where_it_listens_how_big_the_pool_is_and_why_and_how_to_talk_to_it():
    text = serving(Settings())
    assert f"{URL}   socket ws://127.0.0.1:8080/v1/responses" in text
    assert "4.0 GiB for 80000 tokens (5000 blocks of 16, float32): a quarter of 23 GiB" in text
    assert "sessiond chat   in another terminal" in text
    assert "http://127.0.0.1:8080/console   in a browser" in text
    assert f"base_url={URL}/v1" in text
    assert "echo (none) on cpu, weights float32 (0 B), activations float32" in text


def test_it_shows_the_tiers_and_why_one_is_missing():
    shown, out = banner()
    tiers = (
        TierInfo(name="host", bytes=2**30, reason="no memory"),
        TierInfo(name="disk", bytes=2**31, blocks=5761),
    )
    shown.serving(Settings(disk_tier_path="kv"), msgspec.structs.replace(INFO, tiers=tiers), URL)
    assert "host tier  1.0 GiB, not available: no memory\n" in out.getvalue()
    assert "disk tier  2.0 GiB in kv, 5761 blocks for idle KV" in out.getvalue()


def test_the_readme_shows_what_it_says():
    shown, out = banner()
    info = msgspec.structs.replace(
        INFO,
        model="smollm2-135m-instruct",
        architecture="llama",
        weights="Q4_1+Q8_0",
        weights_bytes=int(92.1 * 2**20),
        activation_bytes=0,
        free_bytes=0,
        dtype="int8",
        kv_dtype="bfloat16",
        attention="native-avx512",
        max_model_len=8192,
        max_num_seqs=32,
        max_num_waiting=1024,
        pool_bytes=4 * 2**30,
        total_blocks=11650,
        block_size=16,
        pool_reason="a quarter of 22.7 GiB free memory, at most 4.0 GiB; --kv-cache-memory sets it",
        tiers=(TierInfo(name="disk", bytes=2**31, blocks=5761),),
    )
    settings = Settings(
        db="sqlite+aiosqlite:///.../sessiond/sessiond.db", disk_tier_path=".../sessiond/kv"
    )
    shown.serving(settings, info, URL)
    said = out.getvalue().replace("sessiond chat", ".venv/bin/sessiond chat")
    assert said in README.read_text(encoding="utf-8")


def test_another_port_is_in_the_chat_command():
    assert "sessiond chat --url http://127.0.0.1:9" in serving(Settings(), "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("started_as", "on_path", "shown"),
    [
        (".venv/bin/sessiond", False, ".venv/bin/sessiond"),
        (".venv/bin/sessiond", True, "sessiond"),
        ("/somewhere/sessiond/__main__.py", False, "sessiond"),
    ],
)
def test_the_chat_command_can_be_typed_as_it_is_shown(monkeypatch, started_as, on_path, shown):
    monkeypatch.setattr("shutil.which", lambda name: name if on_path else None)
    assert program_name(started_as) == shown


@pytest.mark.parametrize(
    ("db", "shown"),
    [
        ("postgresql+psycopg://ada:secret@db/x", "postgresql+psycopg://ada:***@db/x"),
        ("sqlite+aiosqlite:////a/b.db", "sqlite+aiosqlite:////a/b.db"),
    ],
)
def test_a_password_is_not_shown(db, shown):
    text = serving(Settings(db=db))
    assert shown in text
    assert "secret" not in text


def test_without_a_terminal_there_are_no_escape_codes():
    shown, out = banner()
    shown.greet()
    shown.progress("loading [a model]")
    assert "\x1b" not in out.getvalue()
    assert "loading [a model]" in out.getvalue()
    assert out.getvalue().startswith("sessiond ")


def test_a_narrow_terminal_gets_lines_under_each_other():
    shown, out = banner(force_terminal=True, color_system=None, width=60)
    shown.serving(Settings(), INFO, URL)
    lines = out.getvalue().splitlines()
    assert all(len(line) <= 60 for line in lines)
    assert [line for line in lines if line.startswith(" " * 13)]
