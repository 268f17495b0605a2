"""What penalties count: the tokens of a turn's context, and how often its reply has each."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_FIRST_ROOM = 256


class Occurrences(NamedTuple):
    """Distinct ids of a context, and how often each occurs in the reply: arrays of one length."""

    ids: npt.NDArray[np.int64]
    in_reply: npt.NDArray[np.float64]


class TokenCounts:
    """Counts of one turn; `add` each token of its reply.

    `uncounted`: ids that are never counted, those that end the reply. A penalty on them would grow
    with every turn of a conversation, until replies no longer end.
    """

    def __init__(self, context: Sequence[int], uncounted: Collection[int] = ()) -> None:
        self._uncounted = frozenset(uncounted)
        self._place: dict[int, int] = {}
        self._ids = np.zeros(_FIRST_ROOM, np.int64)
        self._in_reply = np.zeros(_FIRST_ROOM, np.float64)
        for token in dict.fromkeys(context):
            self._count(token, 0)

    def add(self, token: int) -> None:
        """The reply has one more token."""
        self._count(token, 1)

    def after(self, drafts: Sequence[int]) -> Occurrences:
        """The counts if the reply went on with these drafts. The arrays must not be changed."""
        size = len(self._place)
        now = Occurrences(self._ids[:size], self._in_reply[:size])
        if not drafts:
            return now
        counted = [token for token in drafts if token not in self._uncounted]
        new = [token for token in dict.fromkeys(counted) if token not in self._place]
        place = self._place | {token: size + at for at, token in enumerate(new)}
        ids = np.append(now.ids, np.array(new, np.int64))
        in_reply = np.append(now.in_reply, np.zeros(len(new)))
        for token in counted:
            in_reply[place[token]] += 1
        return Occurrences(ids, in_reply)

    def _count(self, token: int, times: int) -> None:
        if token in self._uncounted:
            return
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            self._ids = np.resize(self._ids, 2 * place)
            self._in_reply = np.append(self._in_reply, np.zeros(place))
        self._ids[place] = token
        self._in_reply[place] += times
