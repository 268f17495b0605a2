"""Reads the vocabulary of a Hugging Face folder: tokenizer.json and the files beside it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from engine.errors import ModelFileError
from engine.files.fields import read_object
from engine.text.byte_level_bpe import byte_of_letter
from engine.text.vocabulary import Encode, Vocabulary, all_stop_ids, parser

_WHOLE = {"post_processor": None, "truncation": None, "padding": None}  # ids of the text only
_MOST_BYTES = 256 * 2**20
_MOST_IDS = 2**22
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
    ordinary = _build(path, _ordinary(path, plan))
    encode = _encoder(ordinary)
    listed = _added_tokens(path, plan)
    added = {token["content"]: token["id"] for token in listed}
    config = read_json(folder / "tokenizer_config.json")
    eos_id = added.get(spelling(config.get("eos_token")) or "")
    ends = [end for name in _CONFIGS for end in _eos_ids(read_json(folder / name))]
    return Vocabulary(
        texts=_texts(path, plan, ordinary, listed),
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
        ModelFileError: the file exists but is not a JSON object.
    """
    return read_object(path, most_bytes=_MOST_BYTES) if path.exists() else {}


def spelling(token: Any) -> str | None:
    """A token of tokenizer_config.json: plain, or an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _build(path: Path, plan: Mapping[str, Any]) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(plan))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises Exception, and panics that are not one
        raise ModelFileError(f"{path}: {str(error)[:500]}") from error


def _added_tokens(path: Path, plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    listed = plan.get("added_tokens")
    found = [] if listed is None else listed
    for token in found if isinstance(found, list) else [found]:
        match token:
            case {"content": str(), "id": int(number)} if 0 <= number < _MOST_IDS:
                pass
            case _:
                shown = str(token)[:100]
                allowed = f"objects with content and an id from 0 to {_MOST_IDS - 1}"
                raise ModelFileError(f"{path}: added_tokens must be {allowed} (got {shown})")
    return found


def _ordinary(path: Path, plan: Mapping[str, Any]) -> dict[str, Any]:
    """The same tokenizer without added tokens: all text is ordinary.

    Text that is encoded alone always follows an added token, so the prefix that some families put
    before a text's first word ("first") is omitted.
    """
    ordinary = {**plan, **_WHOLE, "added_tokens": []}
    pre = plan.get("pre_tokenizer") or {}
    if not isinstance(pre, dict):
        raise ModelFileError(f"{path}: pre_tokenizer must be an object")
    steps = pre.get("pretokenizers")
    if steps is not None:
        if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
            raise ModelFileError(f"{path}: pretokenizers must be a list of objects")
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
        # Such tokens include blanks around them: only the library parses them exactly.
        return _encoder(_build(path, {**plan, **_WHOLE}))
    return parser(added, encode)


def _encoder(tokenizer: tokenizers.Tokenizer) -> Encode:
    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return encode


def _eos_ids(config: Mapping[str, Any]) -> list[int]:
    ends = config.get("eos_token_id")
    listed = ends if isinstance(ends, list) else [ends]
    return [end for end in listed if type(end) is int and 0 <= end < _MOST_IDS]


def _texts(
    path: Path,
    plan: Mapping[str, Any],
    tokenizer: tokenizers.Tokenizer,
    added: Sequence[Mapping[str, Any]],
) -> list[bytes]:
    pieces: dict[str, int] = tokenizer.get_vocab()
    last_id = max([*pieces.values(), *(token["id"] for token in added)], default=-1)
    if last_id >= _MOST_IDS:
        raise ModelFileError(f"{path}: token ids must be at most {_MOST_IDS - 1} (got {last_id})")
    texts = [b""] * (last_id + 1)
    byte_of = byte_of_letter()
    byte_level = '"ByteLevel"' in json.dumps([plan.get("decoder"), plan.get("pre_tokenizer")])
    for piece, token_id in pieces.items():
        if byte_level and byte_of.keys() >= set(piece):
            texts[token_id] = bytes(byte_of[letter] for letter in piece)
        else:
            texts[token_id] = _sentencepiece_text(piece)
    for token in added:
        texts[token["id"]] = b"" if token.get("special") else token["content"].encode()
    return texts


def _sentencepiece_text(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):  # byte fallback
        return bytes([int(piece[3:5], 16)])
    return piece.replace("\u2581", " ").encode()
