"""What a session must hold, and the turn that runs on it."""

from dataclasses import dataclass, field

from engine.ids import TurnId
from engine.ipc.messages import Edit
from engine.kv.partition import kept_spans


@dataclass
class Expected:
    """What a session must hold, and the turn that runs on it.

    `history` are all ids since there was no edit; ids[:sealed] were visible at the last one.
    """

    ids: list[int]
    history: list[int] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    sealed: int = 0
    turn: TurnId | None = None
    prompt: list[int] = field(default_factory=list)
    max_output_tokens: int = 0
    generate: bool = True
    background: bool = False

    def __post_init__(self) -> None:
        self.history = self.history or self.ids.copy()

    def add(self, ids: list[int]) -> None:
        self.ids += ids
        self.history += ids

    def cut(self, length: int) -> None:
        del self.history[len(self.history) - len(self.ids) + length :]
        del self.ids[length:]
        if length < self.sealed:
            self.forget_edits()

    def edit(self, edit: Edit) -> None:
        self.ids = [
            token
            for start, stop in kept_spans(edit.at, edit.dropped)
            for token in self.ids[start:stop]
        ]
        self.edits.append(edit)
        self.sealed = len(self.ids)

    def forget_edits(self) -> None:
        self.history, self.edits, self.sealed = self.ids.copy(), [], 0
