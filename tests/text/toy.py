"""Small models' text files, written by the tests: a byte-level vocabulary with a few merges."""

import json
from pathlib import Path

import gguf

from engine.text.byte_level_bpe import byte_of_letter

LETTERS = sorted(byte_of_letter(), key=byte_of_letter().__getitem__)
# Each piece is made of two earlier ones; its id rises with its place, as in trained vocabularies.
MERGES = [
    ("h", "e"), ("l", "l"), ("Ġ", "Ġ"), ("he", "ll"), ("hell", "o"), ("Ċ", "Ċ"), ("Ġ", "t"),
    ("o", "n"), ("1", "2"), ("ĠĠ", "ĠĠ"), ("Ġt", "on"), ("'", "s"), ("!", "!"), ("!", "Ċ"),
    ("Ä", "ł"), ("o", "r"), ("or", "l"), ("w", "orl"), ("worl", "d"), ("Ġ", "world"),
]  # fmt: skip


def pieces(missing: bytes = b"") -> list[str]:
    byte_of = byte_of_letter()
    letters = [letter for letter in LETTERS if byte_of[letter] not in missing]
    return [*letters, *(left + right for left, right in MERGES)]


def write_gguf(
    path: Path,
    *,
    added: dict[str, int] | None = None,
    tokens: list[str] | None = None,
    merges: list[tuple[str, str]] | None = None,
    pre: str = "gpt-2",
    model: str = "gpt2",
    template: str | None = None,
    eos: str | None = None,
    bos: str | None = None,
) -> Path:
    """`added`: spelling to GGUF token type (3 control, 4 user defined); they come first."""
    added = {"<|end|>": 3} if added is None else added
    names = [*added, *(pieces() if tokens is None else tokens)]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(names)
    writer.add_token_types([*added.values(), *[1] * (len(names) - len(added))])
    pairs = MERGES if merges is None else merges
    writer.add_token_merges([f"{left} {right}" for left, right in pairs])
    if eos:
        writer.add_eos_token_id(names.index(eos))
    if bos:
        writer.add_bos_token_id(names.index(bos))
    if template:
        writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def write_folder(
    folder: Path,
    *,
    added: dict[str, bool] | None = None,
    template: str | None = None,
    eos: str | None = None,
    bos: str | None = None,
) -> Path:
    """`added`: spelling to whether it is special."""
    added = {"<|end|>": True} if added is None else added
    vocabulary = {piece: i for i, piece in enumerate(pieces())}
    plan = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": len(vocabulary) + index,
                "content": content,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": special,
            }
            for index, (content, special) in enumerate(added.items())
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [list(pair) for pair in MERGES],
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(plan), encoding="utf-8")
    config = {"eos_token": eos, "bos_token": bos}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
