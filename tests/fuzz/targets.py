"""What is fuzzed: readers of bytes from clients, the other process, and model files.

Each judge gives any bytes to a reader. It may read them or refuse them, with an error of the one
kind that it promises and words that a person can use; anything else fails.
"""

import json
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec

from engine.errors import ModelFileError, TemplateError
from engine.files.gguf_header import read_gguf_header
from engine.files.safetensors_header import read_safetensors_header
from engine.files.spec_reader import read_spec
from engine.ipc.framing import (
    Ask,
    FrameError,
    OutputBatch,
    encode,
    read_from_worker,
    read_to_worker,
)
from engine.ipc.messages import CancelTurn
from engine.ipc.queries import GetStats
from engine.text.folder_vocabulary import read_folder_vocabulary
from engine.text.jinja_template import JinjaTemplate
from sessiond.api.auth import bearer_key, choose_subprotocol, subprotocol_key
from sessiond.api.protocol.chat import decode_chat_body
from sessiond.api.protocol.json_text import parse_object
from sessiond.api.protocol.policies import decode_policy, decode_session_update
from sessiond.api.protocol.quotas import decode_limits
from sessiond.api.protocol.requests import decode_create_body, decode_frame, lane_of
from sessiond.api.security import HostOriginCheck
from sessiond.api_keys import read_api_key, without_keys
from sessiond.errors import RequestError
from tests.fuzz.seeds import BODIES, CHATS, FRAMES, TEMPLATES
from tests.text.toy import write_folder, write_gguf

CODES = {"invalid_json", "invalid_value", "unsupported_parameter"}
LONGEST_MESSAGE = 2000
_NOW = datetime(2026, 11, 30, 12)  # noqa: DTZ001 -- templates show local time
_MESSAGES = [{"role": "user", "content": "zq"}, {"role": "assistant", "content": "qz"}]


@dataclass(frozen=True)
class Target:
    """One reader. `seeds` are right inputs that mutations begin with."""

    name: str
    judge: Callable[[bytes], None]
    seeds: list[bytes]


def judge_refusal(error):
    """A client's mistake is told with its field, unless there is no field yet."""
    assert error.code in CODES, error.code
    assert error.message
    assert len(error.message) < LONGEST_MESSAGE, len(error.message)
    assert error.message.isprintable() or error.code == "invalid_json", error.message
    assert (error.param is None) == (error.code == "invalid_json"), (error.code, error.param)
    msgspec.json.encode([error.message, error.param])


def error_of(kind, call):
    """The error of this kind that a call raises, if it does; any other is a failure."""
    try:
        call()
    except kind as error:
        return error
    return None


def reads(decode):
    def judge(data):
        refused = error_of(RequestError, lambda: decode(data))
        if refused is not None:
            judge_refusal(refused)

    return judge


def frame(data):
    pairs = parse_object(data)
    lane_of(pairs)
    decode_frame(pairs)


def small_bodies(data):
    pairs = parse_object(data)
    for decode in (decode_policy, decode_session_update, decode_limits):
        reads(decode)(pairs)


def headers(data):
    lines = [line.partition(b":")[::2] for line in data.split(b"\n")]
    check = HostOriginCheck(None, allowed_hosts=["chat.example"])
    refused = error_of(RequestError, lambda: check.check(lines))
    if refused is not None:
        assert refused.code == "permission_denied"
        assert refused.param in {"Host", "Origin"}
        msgspec.json.encode(refused.message)
    text = data.decode("latin-1")
    key = bearer_key(text)
    assert key is None or read_api_key(key) is None or key.startswith("sk-")
    assert isinstance(without_keys(text), str)
    offered = text.split(",")
    subprotocol_key(offered)
    reads(choose_subprotocol)(offered)


def feed(reader, parts):
    for part in parts:
        for _ in reader.feed(part):
            pass


def framing(make_reader):
    def judge(data):
        for size in (len(data) or 1, 7):
            parts = [data[start : start + size] for start in range(0, len(data), size)]
            error_of(FrameError, partial(feed, make_reader(), parts))

    return judge


def model_file(suffix, read):
    folder = Path(tempfile.mkdtemp(prefix="sessiond-fuzz-"))
    path = folder / suffix

    def judge(data):
        path.write_bytes(data)
        refused = error_of(ModelFileError, lambda: read(path))
        if refused is not None:
            assert str(path.parent) in str(refused)
            assert len(str(refused)) < LONGEST_MESSAGE, len(str(refused))

    return judge


def template(data):
    source = data.decode(errors="replace")
    refused = error_of(TemplateError, lambda: judge_rendering(source))
    assert refused is None or len(str(refused)) < LONGEST_MESSAGE


def judge_rendering(source):
    render = JinjaTemplate(source, bos_token="<s>", eos_token="</s>").at(_NOW)
    assert len(render(_MESSAGES, generate=True)) < 16 * 2**20


def gguf_seeds():
    with tempfile.TemporaryDirectory() as folder:
        path = write_gguf(Path(folder) / "m.gguf", tokens=["a", "b", "ab"], merges=[("a", "b")])
        tensor = struct.pack("<Q", 1) + b"t" + struct.pack("<IQQIQ", 2, 4, 4, 0, 0)
        return [path.read_bytes(), b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + tensor + bytes(96)]


def tokenizer_seeds():
    with tempfile.TemporaryDirectory() as folder:
        return [(write_folder(Path(folder) / "m") / "tokenizer.json").read_bytes()]


def safetensors_seed():
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8)


CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "vocab_size": 100, "hidden_size": 64, "head_dim": 16,
    "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "max_position_embeddings": 2048, "use_sliding_window": True,
    "sliding_window": 32, "layer_types": ["full_attention"] * 4,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                     "high_freq_factor": 4.0, "original_max_position_embeddings": 256},
}  # fmt: skip


def as_json(values):
    return [json.dumps(value).encode() for value in values]


TARGETS = {
    target.name: target
    for target in [
        Target("frame", reads(frame), as_json(FRAMES)),
        Target("response-body", reads(decode_create_body), as_json(BODIES)),
        Target("chat-body", reads(decode_chat_body), as_json(CHATS)),
        Target(
            "small-bodies",
            reads(small_bodies),
            as_json([{"type": "last_turns", "turns": 3}, {"ttl_s": 5}, {"tokens_per_day": 7}]),
        ),
        Target("headers", headers, [b"host:localhost:8080\norigin:http://localhost:8080",
                                    b"Bearer sk-0123456789abcdef." + b"a" * 43,
                                    b"responses,openai-insecure-api-key.sk-x"]),
        Target("to-engine", framing(read_to_worker),
               [encode(Ask(number=1, query=GetStats())), encode(CancelTurn(turn="t", keep=True))]),
        Target("from-engine", framing(read_from_worker), [encode(OutputBatch(outputs=[]))]),
        Target("gguf", model_file("m.gguf", read_gguf_header), gguf_seeds()),
        Target("gguf-spec", model_file("m.gguf", read_spec), gguf_seeds()),
        Target("safetensors", model_file("m.safetensors", read_safetensors_header),
               [safetensors_seed()]),
        Target("config", model_file("config.json", lambda path: read_spec(path.parent)),
               as_json([CONFIG])),
        Target("tokenizer", model_file("tokenizer.json",
               lambda path: read_folder_vocabulary(path.parent)), tokenizer_seeds()),
        Target("template", template, [one.encode() for one in TEMPLATES]),
    ]
}  # fmt: skip
