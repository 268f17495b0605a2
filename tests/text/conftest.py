"""The default model's tokenizer, and the same built by the tokenizers library as oracle."""

import os
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, models, pre_tokenizers

from engine.files.gguf_header import read_gguf_header
from engine.text.chat_template import ChatFormat, load_chat_format
from engine.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def model_path() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "sessiond" / "models" / "smollm2-135m-instruct"
    return folder / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def tokenizer(model_path: Path) -> Tokenizer:
    return load_tokenizer(model_path)


@pytest.fixture(scope="session")
def chat_format(model_path: Path, tokenizer: Tokenizer) -> ChatFormat:
    return load_chat_format(model_path, tokenizer)


@pytest.fixture(scope="session")
def oracle(model_path: Path) -> tokenizers.Tokenizer:
    """Reads all text as ordinary. Built from the model's published description, not our patterns:
    single digits, then GPT-2's byte level.
    """
    metadata = read_gguf_header(model_path).metadata
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ", 1)) for pair in metadata["tokenizer.ggml.merges"]]
    oracle = tokenizers.Tokenizer(
        models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)
    )
    oracle.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return oracle


@pytest.fixture(scope="session")
def special_oracle(model_path: Path, oracle: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same, finding special tokens in text."""
    metadata = read_gguf_header(model_path).metadata
    kinds = zip(
        metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"], strict=True
    )
    special = tokenizers.Tokenizer.from_str(oracle.to_str())
    special.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, kind in kinds if kind == 3]
    )
    return special
