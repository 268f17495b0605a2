"""Tokens of a model, as read from its file. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Encode = Callable[[str], list[int]]
Backend = Literal["tiktoken", "tokenizers"]

# Names of end tokens in the model families: a file's metadata often names only one of several that
# its model generates.
END_NAMES = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "</s>",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Tokens of one model.

    `texts[i]` are the bytes of id i in text, b"" for control tokens. `added` are the tokens that
    are never recognised in ordinary text (<|im_end|>, <think>), by their spelling. `encode` treats
    all text as ordinary; `parse` recognises added tokens, for trusted text only.
    """

    texts: Sequence[bytes]
    added: Mapping[str, int]
    bos_id: int | None
    eos_id: int | None
    stop_ids: tuple[int, ...]
    encode: Encode
    parse: Encode
    backend: Backend


def all_stop_ids(named: Sequence[int | None], added: Mapping[str, int]) -> tuple[int, ...]:
    """Ids that end a reply: those that the file names, then known ones, without repetition."""
    known = [added[name] for name in END_NAMES if name in added]
    return tuple(dict.fromkeys(i for i in [*named, *known] if i is not None))


def parser(added: Mapping[str, int], encode: Encode) -> Encode:
    """An encoder that recognises added tokens, the longest first, and encodes the rest."""
    if not added:
        return encode
    longest_first = sorted(added, key=len, reverse=True)
    splitter = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    def parse(text: str) -> list[int]:
        ids: list[int] = []
        for part in splitter.split(text):
            if part in added:
                ids.append(added[part])
            elif part:
                ids += encode(part)
        return ids

    return parse
