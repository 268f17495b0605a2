"""Turns in one request's input: whole ones, which a policy may drop, then the new one. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sessiond.domain import InputItem
from sessiond.store.context_layout import ContextLayout

Ids = tuple[int, ...]


def split(items: Sequence[InputItem]) -> list[Sequence[InputItem]]:
    """The items by turns; the last one is the new turn, which may be empty.

    A turn ends with a message of the assistant that a message of another role follows.
    """
    starts = [
        place
        for place in range(1, len(items))
        if items[place - 1].role == "assistant" != items[place].role
    ]
    return [items[start:stop] for start, stop in zip([0, *starts], [*starts, None], strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTurns:
    """Ids of an input. `earlier`: its whole turns, oldest first; () for a dropped one.

    `own`: the new turn, and the ids before its reply. `dropped`: ids that are no longer there.
    """

    earlier: tuple[Ids, ...]
    own: Ids
    dropped: int = 0

    @property
    def parts(self) -> tuple[int, ...]:
        """Tokens of the earlier turns; 0 for a dropped one."""
        return tuple(map(len, self.earlier))

    @property
    def ids(self) -> Ids:
        """All ids in order."""
        return tuple(token for ids in (*self.earlier, self.own) for token in ids)

    def with_own(self, own: Ids) -> "InputTurns":
        """The input with another, shorter new turn."""
        return replace(self, own=own, dropped=self.dropped + len(self.own) - len(own))

    def joined(self) -> "InputTurns":
        """The input as one turn, none of which may be dropped."""
        return InputTurns(earlier=(), own=self.ids)

    def kept(self, before: ContextLayout, decided: ContextLayout) -> "InputTurns":
        """The input without the turns that are not in `decided`.

        `before`: the layout that the earlier turns follow, with no unanswered message.
        """
        starts = {turn.start for turn in decided.turns}
        earlier, place = [], before.history_tokens
        for ids in self.earlier:
            earlier.append(ids if place in starts else ())
            place += len(ids)
        tokens = sum(map(len, earlier))
        dropped = self.dropped + sum(self.parts) - tokens
        return replace(self, earlier=tuple(earlier), dropped=dropped)


def stored_part(before: ContextLayout, decided: ContextLayout) -> ContextLayout:
    """What a decision leaves of the turns of `before`, without those of the input."""
    turns = tuple(turn for turn in decided.turns if turn.start < before.history_tokens)
    return replace(
        decided,
        turns=turns,
        awaits_reply=before.awaits_reply,
        history_tokens=before.history_tokens,
        all_turns=before.all_turns,
    )
