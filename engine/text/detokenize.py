"""Converts a reply's ids to text as they are sampled, and tracks the ids whose text was sent.

`TextStream` never sees the prompt, so the prompt can't be echoed. It returns whole characters only,
and none that belongs to a stop string. Used by the owner of one turn only.
"""

import codecs
from bisect import bisect_right
from collections.abc import Callable, Sequence

_REPLACEMENT = "\ufffd"
_UTF8_DECODER = codecs.getincrementaldecoder("utf-8")


class TextStream:
    """Converts a reply's ids to text, O(1) amortised per id.

    The results of `push` and `finish`, joined, are the UTF-8 decoding (errors="replace") of all
    bytes, cut before the stop string that is complete first (of several that end at the same
    character, the longest). Empty stop strings are ignored.

    Args:
        token_bytes: bytes of an id's text; b"" for ids without text.
        encode: encodes text; special tokens in it are plain text.
        stop: strings that end the reply and are never sent.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        encode: Callable[[str], list[int]],
        stop: Sequence[str] = (),
    ) -> None:
        self._token_bytes = token_bytes
        self._encode = encode
        self._matcher = _StopMatcher([text for text in stop if text])
        self._decoder = _UTF8_DECODER("replace")
        self._ids: list[int] = []
        self._ends: list[int] = []  # of each id: bytes up to its end
        self._data = bytearray()
        self._sent: list[str] = []
        self._unsent = ""  # decoded, but held back (may begin a stop string) or dropped
        self._ended = False
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; nothing may be pushed after it."""
        return self._stopped

    @property
    def text(self) -> str:
        """All text that was sent."""
        return "".join(self._sent)

    def push(self, token_id: int) -> str:
        """Add the reply's next id; return the text to send now, often "".

        An id that ends the reply (end of turn) is not part of it and is not pushed.

        Raises:
            RuntimeError: the reply has ended already (a bug of the caller).
        """
        if self._ended:
            raise RuntimeError(f"id {token_id} was pushed after the reply's end")
        data = self._token_bytes(token_id)
        self._data += data
        self._ids.append(token_id)
        self._ends.append(len(self._data))
        return self._take(self._decoder.decode(data))

    def finish(self) -> str:
        """End the reply (end of turn, or its limit); return the text that was held back.

        A character that is still incomplete becomes U+FFFD.
        """
        if self._ended:
            return ""
        delta = self._take(self._decoder.decode(b"", final=True))
        if not self._stopped:
            delta += self._send(self._unsent)
            self._unsent = ""
        self._ended = True
        return delta

    def cut(self) -> None:
        """End the reply now (cancelled): text that is held back is never sent."""
        self._ended = True

    @property
    def kept_ids(self) -> list[int]:
        """Ids whose text is exactly the text sent so far: they may stay in the context.

        The longest prefix of the pushed ids whose bytes were all sent is unchanged, so its KV stays
        valid. If a stop string or an incomplete character begins inside an id, the part of it that
        was sent is encoded again: the context must equal the text that the client has received.
        """
        sent = self._sent_bytes()
        count = bisect_right(self._ends, sent)
        kept_bytes = self._ends[count - 1] if count else 0
        while kept_bytes < sent and not _begins_character(self._data, kept_bytes):
            count -= 1
            kept_bytes = self._ends[count - 1] if count else 0
        kept = self._ids[:count]
        if kept_bytes < sent:
            kept += self._encode(self._data[kept_bytes:sent].decode(errors="replace"))
        return kept

    def _take(self, decoded: str) -> str:
        for index, character in enumerate(decoded):
            matched = self._matcher.step(character)
            if matched:
                self._stopped = self._ended = True
                whole = self._unsent + decoded
                end = len(self._unsent) + index + 1
                self._unsent = whole[end - matched :]
                return self._send(whole[: end - matched])
        whole = self._unsent + decoded
        clear = len(whole) - self._matcher.held
        self._unsent = whole[clear:]
        return self._send(whole[:clear])

    def _send(self, text: str) -> str:
        if text:
            self._sent.append(text)
        return text

    def _sent_bytes(self) -> int:
        if _REPLACEMENT in self._unsent:  # it stands for one to three bytes
            return _length_of_characters(self._data, len(self.text))
        pending, _ = self._decoder.getstate()
        return len(self._data) - len(pending) - len(self._unsent.encode())


class _StopMatcher:
    """Finds stop strings one character at a time (Knuth, Morris, Pratt 1977)."""

    def __init__(self, stops: list[str]) -> None:
        self._stops = [(stop, _borders(stop)) for stop in stops]
        self._matched = [0] * len(stops)  # characters of each stop that the text now ends with

    @property
    def held(self) -> int:
        """Number of the last characters that may begin a stop string."""
        return max(self._matched, default=0)

    def step(self, character: str) -> int:
        """Add a character; return the length of the longest stop that it completes, else 0."""
        complete = 0
        for number, (stop, borders) in enumerate(self._stops):
            length = self._matched[number]
            while length and stop[length] != character:
                length = borders[length - 1]
            if stop[length] == character:
                length += 1
            self._matched[number] = length
            if length == len(stop):
                complete = max(complete, length)
        return complete


def _borders(text: str) -> list[int]:
    """Length of the longest proper border of each prefix of `text`."""
    borders = [0] * len(text)
    length = 0
    for index in range(1, len(text)):
        while length and text[index] != text[length]:
            length = borders[length - 1]
        if text[index] == text[length]:
            length += 1
        borders[index] = length
    return borders


def _begins_character(data: bytearray, at: int) -> bool:
    """Whether a character begins at `at`; some that occur only in broken UTF-8 are not counted."""
    if data[at] & 0xC0 != 0x80:
        return True
    decoder = _UTF8_DECODER("replace")
    decoder.decode(data[max(0, at - 3) : at])  # a character has at most three bytes before its last
    pending, _ = decoder.getstate()
    return not pending


def _length_of_characters(data: bytearray, count: int) -> int:
    """Number of bytes of `data` in the first `count` characters of its decoding."""
    decoder = _UTF8_DECODER("replace")
    seen = 0
    for index in range(len(data)):
        if seen == count:
            pending, _ = decoder.getstate()
            return index - len(pending)
        # One byte ends at most two characters: a broken one before it, and its own.
        decoded = decoder.decode(data[index : index + 1])
        if seen + len(decoded) > count:
            return index
        seen += len(decoded)
    pending, _ = decoder.getstate()
    return len(data) - len(pending) if seen == count else len(data)
