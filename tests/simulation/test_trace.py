"""Both forms of trace; a bad line is named."""

import gzip
from pathlib import Path

import pytest

from engine.simulation.trace import TraceError, read_trace

MOONCAKE = (
    '{"t":0.0,"session":0,"turn":1,"parent":-1,"link":"root","input_len":700,"output_len":50,'
    '"blocks":[[0,1],[7,1]]}\n'
    '{"t":3.0,"session":0,"turn":2,"parent":0,"link":"next","input_len":900,"output_len":10,'
    '"blocks":[[0,1],[7,2]]}\n'
)


def test_mooncake_runs_become_blocks(tmp_path: Path) -> None:
    path = tmp_path / "chat.dev.jsonl.gz"
    path.write_bytes(gzip.compress(MOONCAKE.encode()))
    trace = read_trace(path)
    assert (trace.name, trace.block_tokens) == ("chat", 512)
    first, second = trace.requests
    assert (first.blocks, first.known_blocks, first.new_tokens) == ([0, 7], 0, 700)
    assert (second.blocks, second.known_blocks, second.new_tokens) == ([0, 7, 8], 2, 150)


def test_burstgpt_prompts_grow_within_a_session(tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    path.write_text("t,session,turn,input_len,output_len\n0,5,1,40,20\n9,6,1,16,1\n50,5,2,100,9\n")
    first, other, second = read_trace(path).requests
    assert list(second.blocks)[:2] == list(first.blocks)
    assert set(other.blocks).isdisjoint(second.blocks)
    assert (second.known_blocks, second.new_tokens) == (2, 40)


CHAT = (
    '{"t": 0, "session": "a", "input_len": 40, "output_len": 20}\n'
    '{"t": 9, "session": "b", "input_len": 16, "output_len": 1}\n'
    '{"t": 50.5, "session": "a", "input_len": 100, "output_len": 9, "model": "ours"}\n'
)


def test_m08_a_trace_of_ones_own_needs_no_block_ids(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text(CHAT)
    trace = read_trace(tmp_path / "own.jsonl")
    assert trace.block_tokens == 16
    first, other, second = trace.requests
    assert list(second.blocks)[:2] == list(first.blocks)
    assert set(other.blocks).isdisjoint(second.blocks)
    assert (second.at_s, second.new_tokens, second.reply_tokens) == (50.5, 40, 9)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.jsonl", MOONCAKE + "{}\n", "line 3"),
        ("a.csv", "t,session,turn,input_len,output_len\n0,1,1,many,2\n", "line 2"),
        ("a.csv", "t,session,turn,input_len,output_len\n", "must have a request"),
        (
            "a.jsonl",
            CHAT + '{"t": 1, "session": "a", "output_len": 1}',
            "line 4: input_len is missing",
        ),
        ("a.jsonl", CHAT + "[1]", r"line 4 must be an object \(got \[1\]\)"),
        ("a.jsonl", CHAT + MOONCAKE, "line 4: all lines or none must have blocks"),
        ("a.jsonl", "{", "line 1: "),
        ("a.txt", "x", "name must end in"),
    ],
)
def test_what_can_not_be_read_is_named(tmp_path: Path, name, text, words) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TraceError, match=words):
        read_trace(tmp_path / name)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "a.csv")


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_u02_a_trace_that_is_not_utf8_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"t,session,caf\xe9\n")
    with pytest.raises(TraceError, match=r"the trace must be UTF-8 \(got byte 0xe9\)"):
        read_trace(tmp_path / name)


def test_a_trace_whose_archive_was_cut_is_refused(tmp_path):
    whole = gzip.compress(ROW.encode() * 1000)
    (tmp_path / "a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match="Compressed file ended"):
        read_trace(tmp_path / "a.jsonl.gz")


def test_u02_a_byte_order_mark_is_no_part_of_a_trace(tmp_path):
    (tmp_path / "a.jsonl").write_text(ROW, encoding="utf-8-sig")
    assert len(read_trace(tmp_path / "a.jsonl").requests) == 1


ROW = '{"t": 0, "session": "a", "input_len": 1, "output_len": 1, "blocks": []}\n'
