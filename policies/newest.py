"""Selects the newest turns that fit. Pure."""

from policies.plan import KeepTurns
from policies.views import ConversationView


def keep_newest(view: ConversationView, *, limit: int, target: int) -> KeepTurns:
    """Keep as many of the newest turns as fit `target` tokens beside the new turn and the prefix.

    If the new turn leaves no room there, up to `limit` may be used; a summary without room is
    dropped.
    """
    front = view.system_tokens + view.prompt_tokens + view.output_tokens
    summary = front + view.summary_tokens <= limit
    front += view.summary_tokens if summary else 0
    room = (target if front <= target else limit) - front
    first = len(view.turns)
    while first and view.turns[first - 1] <= room:
        first -= 1
        room -= view.turns[first]
    return KeepTurns(turns=tuple(range(first, len(view.turns))), summary=summary)
