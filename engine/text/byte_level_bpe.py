"""Byte-level BPE from a vocabulary and its merges. Pure; its encoders are safe in any thread.

tiktoken is several times faster than tokenizers, but merges by token id instead of the file's list
of merges, and panics (not an `Exception`) on a byte without a token. It is therefore used only if
ids rise in merge order, with placeholders for missing bytes, and if it agrees on a set of hard
texts with tokenizers, which is built from the merges.
"""

import logging
from collections.abc import Mapping, Sequence
from itertools import pairwise

import tiktoken
import tokenizers
from tokenizers import models, pre_tokenizers

from engine.text.patterns import Pattern
from engine.text.vocabulary import Backend, Encode

_log = logging.getLogger(__name__)

_HARD_TEXTS = (
    *map(chr, range(256)),
    "The quick brown fox's 12 dogs; they'll WE'LL   jump\n\n\tover\r\n 3 500 lazy ones!  ",
    "def f(x):\n    return {'a': [1, 2, 3.14159], \"b\": x ** 2}  # ok?\n\n\n        pass",
    "Ünïcödé œuvre straße ﬁ ½ ² Ⅷ ｆｕｌｌ İstanbul naïve café cafe\u0301",
    "数字１２３和汉字，标点。日本語のテキスト 한국어 텍스트 ไทย हिन्दी עברית العربية ٣٤٥",
    "🦙👩‍👩‍👧‍👦🏳️‍🌈 👍🏽 \U0001f1e9\U0001f1ea ∑∫√≠ → ⟂",
    "<|im_start|>user\n<|endoftext|></s><s>[INST] <think>",
    "\u00a0\u2003 \u3000x\u200b\ufeff \u0085\u2028\ufffd\U0010ffff a  1  b 2",
)


def byte_of_letter() -> dict[str, int]:
    """GPT-2's spelling of bytes as printable letters, letter to byte.

    Method: Radford et al. 2019, `bytes_to_unicode`.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return table | {chr(0x100 + index): byte for index, byte in enumerate(others)}


def build_encoder(
    pieces: Mapping[str, int], merges: Sequence[tuple[str, str]], pattern: Pattern
) -> tuple[Encode, Backend]:
    """An encoder of ordinary text.

    Args:
        pieces: ordinary tokens by their GPT-2 spelling.
        merges: pairs of pieces, first merged first.
        pattern: how text is split into words.

    Raises:
        ValueError: a piece of a merge, or its result, is not a token.
    """
    slow = _tokenizers_encoder(pieces, merges, pattern)
    if (why := _not_in_merge_order(pieces, merges, pattern)) is not None:
        _log.info("text is encoded by the package tokenizers: %s", why)
        return slow, "tokenizers"
    fast = _tiktoken_encoder(pieces, pattern, slow)
    for text in _HARD_TEXTS:
        if fast(text) != slow(text):
            _log.warning("text is encoded by the package tokenizers: tiktoken differs on %r", text)
            return slow, "tokenizers"
    return fast, "tiktoken"


def _not_in_merge_order(
    pieces: Mapping[str, int], merges: Sequence[tuple[str, str]], pattern: Pattern
) -> str | None:
    """Why merging by id differs from merging by the list; None if it does not."""
    ids = [pieces[left + right] for left, right in merges]
    if any(after < before for before, after in pairwise(ids)):
        return "ids do not rise in merge order"
    unmade = sum(len(piece) > 1 for piece in pieces) - len(set(ids))
    if unmade and not pattern.whole_words:
        return f"{unmade} tokens result from no merge"
    return None


def _tokenizers_encoder(
    pieces: Mapping[str, int], merges: Sequence[tuple[str, str]], pattern: Pattern
) -> Encode:
    try:
        model = models.BPE(
            vocab=dict(pieces), merges=list(merges), ignore_merges=pattern.whole_words
        )
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"merges and tokens disagree: {error}") from error
    tokenizer = tokenizers.Tokenizer(model)
    words = pre_tokenizers.Split(tokenizers.Regex(pattern.words), "isolated")
    as_letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, as_letters])

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return encode


def _tiktoken_encoder(pieces: Mapping[str, int], pattern: Pattern, slow: Encode) -> Encode:
    byte_of = byte_of_letter()
    ranks = {bytes(byte_of[letter] for letter in piece): i for piece, i in pieces.items()}
    # Placeholders have the highest ranks and are part of no longer token. A byte without a token
    # must be omitted from its word before merging. Only tokenizers does that, so it encodes such
    # texts.
    first_placeholder = max(ranks.values()) + 1
    missing = [bytes([byte]) for byte in range(256) if bytes([byte]) not in ranks]
    ranks |= {byte: first_placeholder + index for index, byte in enumerate(missing)}
    encoding = tiktoken.Encoding(
        "model", pat_str=pattern.words, mergeable_ranks=ranks, special_tokens={}
    )

    def encode(text: str) -> list[int]:
        ids = encoding.encode_ordinary(text)
        if missing and max(ids, default=0) >= first_placeholder:
            return slow(text)
        return ids

    return encode
