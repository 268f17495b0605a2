"""When merging by id (tiktoken) may stand for merging by list (tokenizers)."""

import pytest

from engine.errors import ModelFileError
from engine.text.patterns import PATTERNS
from engine.text.tokenizer import load_tokenizer
from tests.text.toy import LETTERS, MERGES, pieces, write_gguf

SWAPPED = [MERGES[1], MERGES[0], *MERGES[2:]]


def test_ids_that_rise_in_merge_order_are_merged_by_tiktoken(tmp_path):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "m.gguf"))
    assert tokenizer.backend == "tiktoken"
    hello, world = tokenizer.encode("hello world")
    assert tokenizer.token_bytes(hello) == b"hello"
    assert tokenizer.token_bytes(world) == b" world"


def test_ids_out_of_merge_order_are_merged_by_list(tmp_path):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "m.gguf", merges=SWAPPED))
    assert tokenizer.backend == "tokenizers"
    assert tokenizer.decode(tokenizer.encode("hello world")) == "hello world"


def test_merge_list_wins_where_the_two_orders_differ(tmp_path):
    """By list b+c comes first; by id a+b would."""
    tokens = [*LETTERS, "ab", "bc"]
    merges = [("b", "c"), ("a", "b")]
    tokenizer = load_tokenizer(write_gguf(tmp_path / "m.gguf", tokens=tokens, merges=merges))
    assert [tokenizer.token_bytes(i) for i in tokenizer.encode("abc")] == [b"a", b"bc"]


def test_token_that_no_merge_makes_is_never_written(tmp_path):
    """tiktoken would take "hey" whole."""
    tokens = [*pieces(), "hey"]
    tokenizer = load_tokenizer(write_gguf(tmp_path / "m.gguf", tokens=tokens))
    assert tokenizer.backend == "tokenizers"
    assert [tokenizer.token_bytes(i) for i in tokenizer.encode("hey")] == [b"he", b"y"]


def test_whole_words_are_taken_whole_where_the_family_does_so(tmp_path):
    tokens = [*pieces(), "hey"]
    tokenizer = load_tokenizer(write_gguf(tmp_path / "m.gguf", tokens=tokens, pre="llama-bpe"))
    assert [tokenizer.token_bytes(i) for i in tokenizer.encode("hey")] == [b"hey"]


@pytest.mark.parametrize("pre", PATTERNS)
def test_every_pattern_means_the_same_to_both_libraries(tmp_path, pre):
    """Loading compares them on hard texts and would fall back."""
    assert load_tokenizer(write_gguf(tmp_path / "m.gguf", pre=pre)).backend == "tiktoken"


def test_bytes_without_a_token_are_left_out(tmp_path):
    tokens = pieces(missing=b"\x04\xf0z")
    tokenizer = load_tokenizer(write_gguf(tmp_path / "m.gguf", tokens=tokens))
    assert tokenizer.backend == "tiktoken"
    assert tokenizer.encode("\x04z") == []
    assert tokenizer.decode(tokenizer.encode("hello\x04 zworld")) == "hello world"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pre": "new"}, r"tokenizer\.ggml\.pre must be one of gpt-2"),
        ({"model": "llama"}, r"tokenizer\.ggml\.model must be 'gpt2' .* \(got 'llama'\)"),
        ({"tokens": [*LETTERS, "\u2581a"]}, "not spelled as a byte-level token"),
        ({"merges": [("a", "b")]}, "merges and tokens disagree: .*`ab`"),
    ],
)
def test_unknown_families_are_refused_by_name(tmp_path, changed, message):
    with pytest.raises(ModelFileError, match=message):
        load_tokenizer(write_gguf(tmp_path / "m.gguf", **changed))
