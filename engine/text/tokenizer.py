"""Encodes and decodes one model's text. Immutable after loading; safe in any thread."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from engine.errors import ModelFileError
from engine.text.folder_vocabulary import read_folder_vocabulary
from engine.text.gguf_vocabulary import read_gguf_vocabulary
from engine.text.vocabulary import Backend, Vocabulary

# tiktoken's regular expressions overflow their stack (a panic, not an `Exception`) on a run of some
# hundred thousand blanks. Longer runs are encoded in parts.
_LONGEST_BLANK: Final = 100_000
_BLANK = re.compile(rf"\s{{1,{_LONGEST_BLANK}}}")  # matches every blank, so time is linear


class Tokenizer:
    """Encodes and decodes by one model's vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._added = vocabulary.added
        self._names = {token_id: name for name, token_id in vocabulary.added.items()}

    @property
    def vocab_size(self) -> int:
        """Number of ids; a model's embedding may have more rows."""
        return len(self._vocabulary.texts)

    @property
    def ordinary_end(self) -> int:
        """One above the largest id that ordinary text encodes to; added tokens may lie beyond."""
        added = set(self._added.values())
        return max((i + 1 for i in range(self.vocab_size) if i not in added), default=0)

    @property
    def backend(self) -> Backend:
        """The library that encodes."""
        return self._vocabulary.backend

    @property
    def bos_id(self) -> int | None:
        """Id at the beginning of a text, if the model has one."""
        return self._vocabulary.bos_id

    @property
    def eos_id(self) -> int | None:
        """End id in the model's file."""
        return self._vocabulary.eos_id

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """All ids that end a reply."""
        return self._vocabulary.stop_ids

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text: the spelling of a special token in it is text.

        Accepts any string. Halves of surrogate pairs become U+FFFD; bytes without a token in the
        vocabulary are omitted.
        """
        text = _clean(text)
        if len(text) > _LONGEST_BLANK:
            return [i for part in _parts(text) for i in self._vocabulary.encode(part)]
        return self._vocabulary.encode(text)

    def parse(self, text: str) -> list[int]:
        """Ids of trusted text, in which added tokens are recognised. Never for users' text."""
        return self._vocabulary.parse(text)

    def special_id(self, name: str) -> int:
        """Id of an added token by its spelling (`<|im_end|>`).

        Raises:
            KeyError: the model has no such token.
        """
        return self._added[name]

    def special_name(self, token_id: int) -> str | None:
        """Spelling of an added token; None for all other ids."""
        return self._names.get(token_id)

    @property
    def special_names(self) -> Iterable[str]:
        """Spellings of all added tokens."""
        return self._added.keys()

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of an id's text; b"" for control tokens and unknown ids."""
        if 0 <= token_id < len(self._vocabulary.texts):
            return self._vocabulary.texts[token_id]
        return b""

    def decode(self, ids: Iterable[int]) -> str:
        """Text of a run of ids; broken UTF-8 becomes U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode(errors="replace")


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer of a GGUF file or of a Hugging Face folder.

    Raises:
        ModelFileError: it is missing or damaged, or its family is unknown.
    """
    if path.is_dir():
        return Tokenizer(read_folder_vocabulary(path))
    if not path.exists():
        raise ModelFileError(f"{path}: no such file or folder")
    return Tokenizer(read_gguf_vocabulary(path))


def _clean(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates: JSON can carry them, UTF-8 can't
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _parts(text: str) -> Iterable[str]:
    start = 0
    for blank in _BLANK.finditer(text):
        if blank.end() - blank.start() == _LONGEST_BLANK:
            yield text[start : blank.end()]
            start = blank.end()
    yield text[start:]
