"""Headers that lie: huge counts, places outside the file, other files. No big allocation."""

import json
import struct
import tracemalloc

import pytest

from engine.errors import ModelFileError
from engine.files.gguf_header import read_gguf_header
from engine.files.safetensors_header import read_safetensors_header
from engine.files.spec_reader import read_spec
from engine.files.weight_files import weight_files
from engine.text.folder_vocabulary import read_folder_vocabulary
from engine.text.gguf_vocabulary import read_gguf_vocabulary
from tests.files.test_spec_reader import LLAMA, folder
from tests.model.gguf_files import weights, write
from tests.text.toy import write_folder, write_gguf

MOST_BYTES = 48 * 2**20
HUGE = 2**64 - 1
U32, STRING, ARRAY, U8, U64 = 4, 8, 9, 0, 10


@pytest.fixture(autouse=True)
def little_memory():
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MOST_BYTES


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(*keys, tensors=(), key_count=None, tensor_count=None, version=3, padding=4096):
    counts = (
        len(tensors) if tensor_count is None else tensor_count,
        len(keys) if key_count is None else key_count,
    )
    head = b"GGUF" + struct.pack("<IQQ", version, *counts)
    return head + b"".join(keys) + b"".join(tensors) + bytes(padding)


def key(name, kind, raw):
    return text(name) + struct.pack("<I", kind) + raw


def array(kind, count, raw=b""):
    return struct.pack("<IQ", kind, count) + raw


def tensor(name, shape, kind=0, offset=0, dimensions=None):
    count = len(shape) if dimensions is None else dimensions
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", count, *shape, kind, offset)


nested = b"".join(array(ARRAY, 1) for _ in range(5000)) + array(U8, 0)

GGUFS = {
    "counts that fit no file": gguf(key_count=HUGE, tensor_count=HUGE),
    "many keys": gguf(key_count=2**40),
    "many tensors": gguf(tensor_count=2**40),
    "a longer name than the file": gguf(struct.pack("<Q", HUGE)),
    "a name of half a gigabyte": gguf(struct.pack("<Q", 2**29)),
    "a name that is no text": gguf(struct.pack("<Q", 4) + b"\xff\xfe\xff\xfe"),
    "an unknown type": gguf(key("a", 99, b"")),
    "a long array": gguf(key("a", ARRAY, array(U64, HUGE))),
    "an array as long as would fit, of larger things": gguf(key("a", ARRAY, array(U64, 4000))),
    "texts that are not there": gguf(key("a", ARRAY, array(STRING, 4000)), padding=4000),
    "arrays in arrays": gguf(key("a", ARRAY, nested)),
    "a million empty arrays": gguf(
        key("a", ARRAY, array(ARRAY, 2**20, array(U8, 0) * 2**20)), padding=0
    )[: 2**20],
    "no alignment": gguf(key("general.alignment", U32, struct.pack("<I", 0))),
    "a large alignment": gguf(key("general.alignment", U32, struct.pack("<I", 2**32 - 1))),
    "an alignment in words": gguf(key("general.alignment", STRING, text("x"))),
    "an alignment of many": gguf(key("general.alignment", ARRAY, array(U8, 2, b"ab"))),
    "a tensor of many dimensions": gguf(tensors=[tensor("a", (1,) * 9)]),
    "dimensions without end": gguf(tensors=[tensor("a", (), dimensions=2**32 - 1)]),
    "a tensor outside the file": gguf(tensors=[tensor("a", (4, 4), offset=2**40)]),
    "an offset that overflows": gguf(tensors=[tensor("a", (4, 4), offset=HUGE)]),
    "a key twice": gguf(key("a", U8, b"1"), key("a", U8, b"2")),
    "a tensor twice": gguf(tensors=[tensor("a", (4, 4))] * 2),
    "another version": gguf(version=4),
    "another order of bytes": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "another magic": b"GGML" + bytes(64),
    "nothing": b"",
    "a beginning": b"GGUF\x03",
}


@pytest.mark.parametrize("name", GGUFS)
def test_a_gguf_header_that_lies_is_refused(tmp_path, name):
    path = tmp_path / "m.gguf"
    path.write_bytes(GGUFS[name])
    with pytest.raises(ModelFileError) as refused:
        read_gguf_header(path)
    assert str(path) in str(refused.value)
    assert len(str(refused.value)) < 1000


def test_values_of_one_byte_are_not_made_objects_without_end(tmp_path):
    path = tmp_path / "m.gguf"
    many = 2**23
    path.write_bytes(gguf(key("a", ARRAY, array(U8, many, bytes(many)))))
    with pytest.raises(ModelFileError, match=r"must have at most .* values"):
        read_gguf_header(path)


def safetensors(header, *, length=None, data=b""):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def stored(**changes):
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


SAFETENSORS = {
    "a long header": safetensors({}, length=HUGE),
    "a header of a gigabyte": safetensors({}, length=2**30),
    "a header longer than the file": safetensors({}, length=1000),
    "no JSON": safetensors(b"{" * 100),
    "deep JSON": safetensors(b"[" * 100_000),
    "long numbers": safetensors(b'{"a": ' + b"9" * 100_000 + b"}"),
    "a list": safetensors([]),
    "bytes": safetensors(b"\xff\xfe"),
    "no object": safetensors({"a": 1}),
    "no shape": safetensors({"a": {"dtype": "F32", "data_offsets": [0, 0]}}),
    "a shape in words": safetensors(stored(shape=["2"]), data=bytes(8)),
    "a shape below nothing": safetensors(stored(shape=[-2]), data=bytes(8)),
    "a shape of yes and no": safetensors(stored(shape=[True, 2]), data=bytes(8)),
    "a shape that overflows": safetensors(stored(shape=[2**62, 2**62]), data=bytes(8)),
    "a shape of other size": safetensors(stored(shape=[3]), data=bytes(8)),
    "many dimensions": safetensors(stored(shape=[1] * 1000), data=bytes(8)),
    "an end outside": safetensors(stored(data_offsets=[0, 2**40]), data=bytes(8)),
    "a start below nothing": safetensors(stored(data_offsets=[-8, 0]), data=bytes(8)),
    "an end before the start": safetensors(stored(data_offsets=[8, 0]), data=bytes(8)),
    "offsets in words": safetensors(stored(data_offsets=["0", "8"]), data=bytes(8)),
    "three offsets": safetensors(stored(data_offsets=[0, 8, 9]), data=bytes(9)),
    "a type that is a list": safetensors(stored(dtype=[]), data=bytes(8)),
    "nothing": b"",
    "a beginning": b"\x10\x00",
}


@pytest.mark.parametrize("name", SAFETENSORS)
def test_a_safetensors_header_that_lies_is_refused(tmp_path, name):
    path = tmp_path / "model.safetensors"
    path.write_bytes(SAFETENSORS[name])
    with pytest.raises(ModelFileError) as refused:
        read_safetensors_header(path)
    assert str(path) in str(refused.value)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 2**40},
        {"num_hidden_layers": 10**300},
        {"head_dim": 2**40},
        {"num_attention_heads": 2**40, "num_key_value_heads": 1},
        {"vocab_size": 2**62},
        {"hidden_size": 2**62},
        {"max_position_embeddings": 2**62},
        {"rope_theta": 10**300},
        {"rms_norm_eps": float("inf")},
        {"rms_norm_eps": float("nan")},
        {"rope_scaling": {"type": "linear", "factor": 10**300}},
        {"architectures": [["LlamaForCausalLM"]]},
        {"architectures": [{"a": 1}]},
        {"hidden_act": ["x" * 1_000_000]},
    ],
)
def test_sizes_beyond_reason_are_refused_by_name(tmp_path, changes):
    with pytest.raises(ModelFileError) as refused:
        read_spec(folder(tmp_path, **changes))
    assert next(iter(changes)) in str(refused.value) or "factor" in str(refused.value)
    assert len(str(refused.value)) < 1000


def test_sizes_that_the_files_cannot_hold_are_refused_before_memory_is_taken(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(safetensors({}))
    with pytest.raises(ModelFileError, match="do not fit"):
        read_spec(folder(tmp_path, vocab_size=2**24, hidden_size=2**14))
    path = write(tmp_path / "m.gguf", weights(), extra=[lambda w: w.add_feed_forward_length(2**24)])
    with pytest.raises(ModelFileError, match="do not fit"):
        read_spec(path)


@pytest.mark.parametrize("raw", [b"[" * 100_000, b'{"a": ' + b"9" * 10_000 + b"}", b"\xff\xff"])
def test_a_config_that_is_none_is_refused(tmp_path, raw):
    (tmp_path / "config.json").write_bytes(raw)
    with pytest.raises(ModelFileError, match=r"config\.json"):
        read_spec(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["../other.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", 7, None, "notes.txt"],
)
def test_an_index_leads_to_no_other_place(tmp_path, name):
    index = {"weight_map": {"a": name, "b": "model.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match="weight_map must name"):
        weight_files(tmp_path)


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": "x"}, []])
def test_a_damaged_index_is_refused(tmp_path, index):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match=r"index\.json"):
        weight_files(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"added_tokens": [{"content": "x", "id": 2**31}]},
        {"added_tokens": [{"content": "x", "id": -1}]},
        {"added_tokens": [{"content": "x"}]},
        {"added_tokens": [{"content": 7, "id": 1}]},
        {"added_tokens": {"a": 1}},
        {"added_tokens": [7]},
        {"pre_tokenizer": "x"},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": ["x"]}},
        {"model": {"type": "BPE", "vocab": {"a": 4_000_000_000}, "merges": []}},
        {"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}},
        {"model": {"type": "BPE", "vocab": [], "merges": {}}},
        {"model": {"type": "WordPiece", "vocab": 7}},
        {"model": None},
        {"decoder": {"type": "nothing"}},
    ],
)
def test_a_tokenizer_json_that_lies_is_refused(tmp_path, change):
    path = write_folder(tmp_path / "m") / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        read_folder_vocabulary(path.parent)


@pytest.mark.parametrize(
    ("name", "kind", "raw"),
    [
        ("tokens", U32, bytes(4)),
        ("tokens", ARRAY, array(U8, 2, b"ab")),
        ("merges", ARRAY, array(U8, 2, b"ab")),
        ("merges", STRING, text("a b")),
        ("merges", ARRAY, array(STRING, 1, text("nowhere nothing"))),
        ("token_type", STRING, text("x")),
        ("token_type", ARRAY, array(STRING, 1, text("x"))),
        ("token_type", ARRAY, array(U8, 1, b"1")),
        ("pre", ARRAY, array(U8, 2, b"ab")),
        ("model", ARRAY, array(U8, 2, b"ab")),
    ],
)
def test_a_vocabulary_of_other_types_is_refused(tmp_path, name, kind, raw):
    right = {
        "model": (STRING, text("gpt2")),
        "pre": (STRING, text("gpt-2")),
        "tokens": (ARRAY, array(STRING, 3, text("a") + text("b") + text("ab"))),
        "merges": (ARRAY, array(STRING, 1, text("a b"))),
    }
    keys = [
        key(f"tokenizer.ggml.{one}", *pair) for one, pair in (right | {name: (kind, raw)}).items()
    ]
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(*keys))
    with pytest.raises(ModelFileError, match=r"m\.gguf"):
        read_gguf_vocabulary(path)


def test_ids_of_tokens_that_are_not_there_are_none(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", eos="<|end|>")
    good = read_gguf_vocabulary(path)
    raw = path.read_bytes()
    at = raw.index(b"tokenizer.ggml.eos_token_id") + len("tokenizer.ggml.eos_token_id") + 4
    path.write_bytes(raw[:at] + struct.pack("<I", 2**32 - 1) + raw[at + 4 :])
    bad = read_gguf_vocabulary(path)
    assert (good.eos_id, bad.eos_id) == (0, None)
    assert len(bad.texts) == len(good.texts)


def test_the_least_config_that_is_right_is_read(tmp_path):
    assert read_spec(folder(tmp_path)).num_layers == LLAMA["num_hidden_layers"]
