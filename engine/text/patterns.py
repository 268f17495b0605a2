"""Splits text into words before merging: one regular expression per family. Constants only.

Names are those of GGUF's `tokenizer.ggml.pre`. Each expression is valid, and has the same meaning,
in tiktoken (fancy-regex) and in tokenizers (Oniguruma).
"""

from dataclasses import dataclass

_GPT2 = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+"
    r"|\s+(?!\S)|\s+"
)
# Digits are split off one by one first, then GPT-2's expression runs on the text between them: a
# digit never includes the space before it, and ends a run of spaces like the end of the text.
_SINGLE_DIGITS = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\p{N}"
    r"|\s+(?![^\s\p{N}])|\s+"
)
_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """`whole_words`: a word that is in the vocabulary becomes one token, without merges."""

    words: str
    whole_words: bool = False


_QWEN2 = Pattern(words=_CL100K.format(digits=""))
_LLAMA3 = Pattern(words=_CL100K.format(digits="{1,3}"), whole_words=True)

PATTERNS: dict[str, Pattern] = {
    "gpt-2": Pattern(words=_GPT2),
    "gpt2": Pattern(words=_GPT2),
    "smollm": Pattern(words=_SINGLE_DIGITS),
    "starcoder": Pattern(words=_SINGLE_DIGITS),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
}
