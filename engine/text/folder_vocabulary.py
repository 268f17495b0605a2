"""Reads the vocabulary of a Hugging Face folder: tokenizer.json and the files beside it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from engine.errors import ModelFileError
from engine.text.byte_level_bpe import byte_of_letter
from engine.text.vocabulary import Encode, Vocabulary, all_stop_ids, parser

_WHOLE = {"post_processor": None, "truncation": None, "padding": None}  # the text and no more
_CONFIGS = ("generation_config.json", "config.json")


def read_folder_vocabulary(folder: Path) -> Vocabulary:
    """Read and build the vocabulary with the tokenizers library.

    Raises:
        ModelFileError: tokenizer.json is missing, damaged, or of a newer kind.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelFileError(
            f"{folder}: no tokenizer.json. A folder that has only tokenizer.model is converted by "
            "transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    plan = read_json(path)
    ordinary = _build(path, _ordinary(plan))
    encode = _encoder(ordinary)
    listed = plan.get("added_tokens") or []
    added = {token["content"]: int(token["id"]) for token in listed}
    config = read_json(folder / "tokenizer_config.json")
    eos_id = added.get(spelling(config.get("eos_token")) or "")
    ends = [end for name in _CONFIGS for end in _eos_ids(read_json(folder / name))]
    return Vocabulary(
        texts=_texts(plan, ordinary, listed),
        added=added,
        bos_id=added.get(spelling(config.get("bos_token")) or ""),
        eos_id=eos_id if eos_id is not None else next(iter(ends), None),
        stop_ids=all_stop_ids([eos_id, *ends], added),
        encode=encode,
        parse=_parser(path, plan, added, encode),
        backend="tokenizers",
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no such file.

    Raises:
        ModelFileError: the file is there but holds no JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: cannot be read ({error})") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: holds {type(value).__name__}, not an object")
    return value


def spelling(token: Any) -> str | None:
    """A token of tokenizer_config.json: plain, or an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _build(path: Path, plan: Mapping[str, Any]) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(plan))
    except Exception as error:  # the library raises plain Exception
        raise ModelFileError(f"{path}: {error}") from error


def _ordinary(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The same tokenizer without added tokens: it reads all text as ordinary.

    Text that is encoded alone always follows an added token, so the mark that some families put
    before a text's first word ("first") is left out.
    """
    ordinary = {**plan, **_WHOLE, "added_tokens": []}
    pre = plan.get("pre_tokenizer") or {}
    steps = pre.get("pretokenizers")
    if steps is not None:
        ordinary["pre_tokenizer"] = {**pre, "pretokenizers": [_without_first(s) for s in steps]}
    elif pre:
        ordinary["pre_tokenizer"] = _without_first(pre)
    return ordinary


def _without_first(step: Mapping[str, Any]) -> dict[str, Any]:
    if step.get("prepend_scheme") == "first":
        return {**step, "prepend_scheme": "never"}
    return dict(step)


def _parser(
    path: Path, plan: Mapping[str, Any], added: Mapping[str, int], encode: Encode
) -> Encode:
    flags = ("lstrip", "rstrip", "single_word")
    if any(token.get(flag) for token in plan.get("added_tokens") or [] for flag in flags):
        # They take blanks around them, which the library knows best; it costs a second build.
        return _encoder(_build(path, {**plan, **_WHOLE}))
    return parser(added, encode)


def _encoder(tokenizer: tokenizers.Tokenizer) -> Encode:
    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return encode


def _eos_ids(config: Mapping[str, Any]) -> list[int]:
    ends = config.get("eos_token_id")
    return [ends] if isinstance(ends, int) else list(ends or [])


def _texts(
    plan: Mapping[str, Any],
    tokenizer: tokenizers.Tokenizer,
    added: Sequence[Mapping[str, Any]],
) -> list[bytes]:
    pieces: dict[str, int] = tokenizer.get_vocab()
    last_id = max([*pieces.values(), *(int(token["id"]) for token in added)], default=-1)
    texts = [b""] * (last_id + 1)
    byte_of = byte_of_letter()
    byte_level = '"ByteLevel"' in json.dumps([plan.get("decoder"), plan.get("pre_tokenizer")])
    for piece, token_id in pieces.items():
        if byte_level and byte_of.keys() >= set(piece):
            texts[token_id] = bytes(byte_of[letter] for letter in piece)
        else:
            texts[token_id] = _sentencepiece_text(piece)
    for token in added:
        texts[int(token["id"])] = b"" if token.get("special") else token["content"].encode()
    return texts


def _sentencepiece_text(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):  # byte fallback
        return bytes([int(piece[3:5], 16)])
    return piece.replace("\u2581", " ").encode()
