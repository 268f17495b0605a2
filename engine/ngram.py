"""N-gram drafts: predicts tokens from a session's own text (prompt lookup, Saxena 2023). Pure.

Where the last few tokens occurred before, the tokens that followed them are the draft.
"""

from array import array
from collections.abc import Sequence

_LENGTHS = (3, 5)  # tokens that must match; a longer match points to a better place
_ID_BYTES = 4


class NgramGuess:
    """A session's ids, and the place among them that the next tokens are predicted to repeat.

    Searching 8,000 ids takes about 5 µs. A search is needed only after a rejected draft, or where
    there was none.
    """

    def __init__(self, ids: Sequence[int]) -> None:
        # as bytes: CPython searches them backwards in native code
        self._data = bytearray(array("I", ids).tobytes())
        self._place: int | None = None  # byte offset of the predicted id
        self.run = 0  # accepted drafts in a row
        self._search()

    @property
    def exists(self) -> bool:
        """Whether there is a draft."""
        return self._place is not None

    def push(self, token: int) -> bool | None:
        """Add the next token; return whether the draft was right, None when there was none."""
        place, data = self._place, self._data
        new = token.to_bytes(_ID_BYTES, "little")
        data += new
        if place is None:
            self._search()
            return None
        if data[place : place + _ID_BYTES] == new:
            self._place = place + _ID_BYTES
            self.run += 1
            return True
        self.run = 0
        self._search()
        return False

    def tokens(self, count: int) -> list[int]:
        """The next `count` draft tokens; none when there is no draft.

        Beyond the known ids, the draft repeats itself.
        """
        if self._place is None:
            return []
        followed = array("I", bytes(self._data[self._place : self._place + _ID_BYTES * count]))
        period = len(followed)
        return [followed[index % period] for index in range(count)]

    def _search(self) -> None:
        data, self._place = self._data, None
        for length in _LENGTHS:
            wanted = bytes(data[-length * _ID_BYTES :])
            if len(wanted) < length * _ID_BYTES:
                return
            end = len(data) - 1  # the last ids would match themselves
            at = data.rfind(wanted, 0, end)
            while at > 0 and at % _ID_BYTES:  # a match must begin at an id, not inside one
                at = data.rfind(wanted, 0, at + len(wanted) - 1)
            if at < 0 or at % _ID_BYTES:
                return
            self._place = at + len(wanted)
