"""Guesses a reply's next tokens from its own past: prompt lookup (Saxena 2023). Pure.

Where the last few tokens have stood before, what followed them then is the guess.
"""

from array import array
from collections.abc import Sequence

_LENGTHS = (3, 5)  # tokens that must have stood before; more of them point to a better place
_ID_BYTES = 4


class NgramGuess:
    """A session's ids, and the place among them that the next token is guessed to repeat.

    Searching 8,000 ids takes some 5 µs, and only a token that ends a run of true guesses, or that
    had none, needs a search.
    """

    def __init__(self, ids: Sequence[int]) -> None:
        # as bytes: CPython searches them backwards in native code
        self._data = bytearray(array("I", ids).tobytes())
        self._place: int | None = None  # byte offset of the id that is the guess
        self.run = 0  # guesses in a row that came true up to now
        self._search()

    @property
    def exists(self) -> bool:
        """Whether there is a guess."""
        return self._place is not None

    def push(self, token: int) -> bool | None:
        """The next token is known: whether the guess was true, None when there was none."""
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
        """The next `count` tokens as guessed; none when there is no guess.

        Where what is known ends, the guess goes on with itself, as a text that goes in circles.
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
            end = len(data) - 1  # the last ids themselves are no answer
            at = data.rfind(wanted, 0, end)
            while at > 0 and at % _ID_BYTES:  # bytes of two ids look like those of another
                at = data.rfind(wanted, 0, at + len(wanted) - 1)
            if at < 0 or at % _ID_BYTES:
                return
            self._place = at + len(wanted)
