"""Folders of SentencePiece-like families, against the tokenizers library reading the whole file."""

import json
from pathlib import Path

import pytest
import tokenizers

from engine.text.tokenizer import load_tokenizer

METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
PREPEND = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ],
}


def write_sentencepiece_folder(folder: Path, *, normalizer=None, pre_tokenizer=None, **flags):
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "h", "i", "▁h", "hi", "▁hi"]
    merges = [["▁", "h"], ["h", "i"], ["▁h", "i"]]
    added = [
        {
            "id": index,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
            **flags,
        }
        for index, content in enumerate(pieces[:3])
    ]
    decoder = {"type": "ByteFallback"}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": "<unk>",
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": {piece: i for i, piece in enumerate(pieces)},
        "merges": merges,
    }
    plan = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
    plan |= {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": None}
    folder.mkdir()
    text = json.dumps({**plan, "decoder": decoder, "model": model})
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    return folder


@pytest.mark.parametrize(
    "how", [{"pre_tokenizer": METASPACE}, {"normalizer": PREPEND}], ids=["first", "always"]
)
@pytest.mark.parametrize("text", ["hi", " hi", "hi hi\n", "é🦙", "</s>hi", ""])
def test_text_after_a_special_token_is_encoded_as_in_the_whole(tmp_path, how, text):
    folder = write_sentencepiece_folder(tmp_path / "m", **how)
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer = load_tokenizer(folder)
    whole = "<s>" + text
    assert tokenizer.parse(whole) == library.encode(whole, add_special_tokens=False).ids
    if "</s>" not in text:
        assert [tokenizer.bos_id, *tokenizer.encode(text)] == tokenizer.parse(whole)
    else:
        assert tokenizer.eos_id not in tokenizer.encode(text)


def test_special_tokens_that_take_blanks_are_parsed_as_the_library_does(tmp_path):
    folder = write_sentencepiece_folder(tmp_path / "m", pre_tokenizer=METASPACE, rstrip=True)
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer = load_tokenizer(folder)
    whole = "<s>  hi</s> hi"
    assert tokenizer.parse(whole) == library.encode(whole, add_special_tokens=False).ids


def test_bytes_and_blanks_of_pieces_are_their_text(tmp_path):
    tokenizer = load_tokenizer(write_sentencepiece_folder(tmp_path / "m", pre_tokenizer=METASPACE))
    assert tokenizer.decode(tokenizer.encode("hi 🦙\n")) == "hi 🦙\n"
    assert tokenizer.backend == "tokenizers"
    assert [tokenizer.token_bytes(i) for i in (0, 1, 2, 3 + 10)] == [b"", b"", b"", b"\n"]
