"""Breaks a streamed text at spaces, so that a terminal splits no word at its edge. Pure."""

from rich.cells import cell_len

_TAB = 8
_WIDE = 2  # cells of a CJK character or an emoji, around which a line may break without a space


class WordWrap:
    """Takes a text that begins at the left edge, in parts of any size, and holds nothing back.

    A word that outgrows its line is erased there and begins the next one.
    """

    def __init__(self) -> None:
        self._column = 0
        self._word = ""  # shown so far

    def feed(self, text: str, width: int) -> str:
        """Return what to write to a terminal of `width` cells."""
        return "".join(self._one(char, width) for char in text)

    def _one(self, char: str, width: int) -> str:
        if char == "\n":
            self._column, self._word = 0, ""
            return char
        if char.isspace():
            return self._space(char, width)
        cells = cell_len(char)
        if cells == _WIDE:
            self._word = ""
        shown = self._break() + char if self._column + cells > width else char
        self._column += cells
        self._word = "" if cells == _WIDE else self._word + char
        return shown

    def _space(self, char: str, width: int) -> str:
        self._word = ""
        cells = _TAB - self._column % _TAB if char == "\t" else 1
        if self._column + cells > width:
            return ""  # the next word begins a line anyhow
        self._column += cells
        return char

    def _break(self) -> str:
        """Begin a line, with the word if it does not fill the whole line before."""
        start = self._column - cell_len(self._word)
        if start == 0:
            self._column, self._word = 0, ""
            return "\n"
        self._column = cell_len(self._word)
        return f"\x1b[{start + 1}G\x1b[K\n{self._word}" if self._word else "\n"
