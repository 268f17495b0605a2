"""Random sessions in any number, generated one by one. Keeps only the live ones in memory."""

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass

from engine.simulation.trace import MOONCAKE_BLOCK_TOKENS, Request

# From production chat (Mooncake, FAST'25): probability of another turn after turn 1, 2, ...; gap
# between turns (log-normal, p50 129 s); tokens of the first prompt (all prompts have p50 6,909);
# tokens that a turn adds.
_ANOTHER_TURN = (0.25, 0.38, 0.57, 0.57, 0.69, 0.79)
_GAP_MEDIAN_S, _GAP_SPREAD = 129.0, 1.0
_FIRST_MEDIAN_TOKENS, _FIRST_SPREAD = 2500.0, 1.0
_ADDED_MEDIAN_TOKENS, _ADDED_SPREAD = 420.0, 0.7
_MOST_BLOCKS = 256
_SESSIONS_PER_SECOND = 2.0


@dataclass(slots=True)
class _Session:
    number: int
    turn: int
    tokens: int
    known_blocks: int
    new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSessions:
    """`count` sessions that begin at random times; each iteration yields the same ones."""

    count: int
    seed: int = 0

    def __iter__(self) -> Iterator[Request]:
        """Requests in order of time."""
        draw = random.Random(self.seed)  # noqa: S311 -- a workload, no secret
        now_s, begun = 0.0, 0
        due: list[tuple[float, int, _Session]] = []
        while begun < self.count or due:
            if begun < self.count and (not due or now_s <= due[0][0]):
                tokens = round(draw.lognormvariate(0, _FIRST_SPREAD) * _FIRST_MEDIAN_TOKENS)
                at_s, session = now_s, _Session(begun, 1, tokens, 0, tokens)
                begun += 1
                now_s += draw.expovariate(_SESSIONS_PER_SECOND)
            else:
                at_s, _, session = heapq.heappop(due)
            yield _request(at_s, session)
            if draw.random() < _ANOTHER_TURN[min(session.turn, len(_ANOTHER_TURN)) - 1]:
                gap_s = draw.lognormvariate(0, _GAP_SPREAD) * _GAP_MEDIAN_S
                _continue(session, draw)
                heapq.heappush(due, (at_s + gap_s, session.number, session))


def _blocks(tokens: int) -> int:
    return max(1, min(tokens // MOONCAKE_BLOCK_TOKENS, _MOST_BLOCKS))


def _continue(session: _Session, draw: random.Random) -> None:
    session.known_blocks = _blocks(session.tokens)
    session.new_tokens = round(draw.lognormvariate(0, _ADDED_SPREAD) * _ADDED_MEDIAN_TOKENS)
    session.tokens += session.new_tokens
    session.turn += 1


def _request(at_s: float, session: _Session) -> Request:
    # ids repeat after 16 million sessions, long after the first ones have ended
    first = session.number * _MOST_BLOCKS % 2**32
    return Request(
        at_s=at_s,
        session=str(session.number),
        blocks=range(first, first + _blocks(session.tokens)),
        known_blocks=session.known_blocks,
        new_tokens=session.new_tokens,
    )
