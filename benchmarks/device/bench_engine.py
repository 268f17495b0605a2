"""An engine around a model without a file, with short words for what is done to it."""

import time
from itertools import count
from typing import cast, get_args, get_type_hints

import msgspec

from benchmarks.reclaim import NoText
from engine.bootstrap import assemble
from engine.config import EngineConfig
from engine.ids import SessionId, TurnId
from engine.ipc.messages import (
    CloseContext,
    ParkContext,
    ReleaseContext,
    Sampling,
    SetContext,
    SubmitTurn,
    TruncateContext,
    TurnDelta,
    TurnDone,
    TurnEvent,
    TurnFailed,
    TurnIncomplete,
    TurnStarted,
)
from engine.ipc.queries import AuditReport, EngineStats, GetAudit, GetStats, TierStats
from engine.model.runner import LoadedModel

_MOST_WAIT_S = 120.0
_SALT = b"user"


def backend_names() -> tuple[str, ...]:
    """Names that `attention_backend` takes, without those that pick another; () without it."""
    hint = get_type_hints(EngineConfig).get("attention_backend")
    return tuple(name for name in get_args(hint) if name not in ("auto", "native"))


def with_backend(config: EngineConfig, name: str) -> EngineConfig:
    """Return the config with a backend, where there is a choice."""
    return msgspec.structs.replace(config, attention_backend=name) if backend_names() else config


class TurnFailedError(Exception):
    """A turn did not end with a reply."""


class BenchEngine:
    """One loop over a pool of `num_blocks`. Turns run alone unless `begin` starts several."""

    def __init__(self, config: EngineConfig, loaded: LoadedModel, num_blocks: int) -> None:
        self.loaded = loaded
        self.events: list[tuple[float, TurnEvent]] = []
        self._names = count(1)
        self.loop, self.tiers = assemble(
            config,
            loaded,
            num_blocks,
            NoText(),
            lambda event: self.events.append((time.perf_counter(), event)),
            max_model_len=loaded.max_model_len,
        )

    def open(self, ids: list[int], *, salt: bytes = _SALT) -> SessionId:
        """Open a session with ids and no KV. Another salt: it finds no one else's KV."""
        session = SessionId(f"s{next(self._names)}")
        self.loop.handle(SetContext(session=session, salt=salt, ids=ids))
        return session

    def begin(self, session: SessionId, ids: list[int], tokens: int) -> TurnId:
        """Submit a greedy turn that draws so many tokens."""
        turn = TurnId(f"t{next(self._names)}")
        self.loop.handle(
            SubmitTurn(
                turn=turn,
                session=session,
                ids=ids,
                sampling=Sampling(temperature=0.0),
                max_output_tokens=tokens,
            )
        )
        return turn

    def run(self) -> None:
        """Step until no turn waits or runs.

        Raises:
            TurnFailedError: one of them failed.
        """
        while self.loop.has_work:
            self.loop.step()
        for _, event in self.events:
            if isinstance(event, TurnFailed):
                raise TurnFailedError(event.message)

    def turn(self, session: SessionId, ids: list[int], tokens: int) -> list[int]:
        """Run a turn; returns the ids that it drew."""
        turn = self.begin(session, ids, tokens)
        self.run()
        for _, event in reversed(self.events):
            if isinstance(event, TurnDone | TurnIncomplete) and event.turn == turn:
                return event.kept_ids
        raise TurnFailedError(f"{turn} has no ending")

    def first_token_s(self, session: SessionId, ids: list[int]) -> tuple[float, TurnStarted]:
        """Run a turn of one token: seconds from its submission, and what it found."""
        self.events.clear()
        started_s = time.perf_counter()
        self.turn(session, ids, 1)
        at_s = next(at_s for at_s, event in self.events if isinstance(event, TurnDelta))
        found = next(event for _, event in self.events if isinstance(event, TurnStarted))
        return at_s - started_s, found

    def step_until_all_write(self, turns: int) -> None:
        """Step until so many turns have begun to write.

        Raises:
            TurnFailedError: one of them can't, or ends before.
        """
        writing: set[TurnId] = set()
        while len(writing) < turns:
            self.events.clear()
            if not self.loop.has_work:
                raise TurnFailedError(f"only {len(writing)} of {turns} turns have written")
            self.loop.step()
            writing.update(event.turn for _, event in self.events if isinstance(event, TurnDelta))

    def park_s(self, session: SessionId, kv_bytes: int) -> float:
        """Have a session's KV written to the host tier; seconds until the last block is there.

        Raises:
            TurnFailedError: after minutes it is not.
        """
        wanted = self.host.stored_bytes_total + kv_bytes
        started_s = time.perf_counter()
        self.loop.handle(ParkContext(session=session))
        while self.host.stored_bytes_total < wanted:
            self.loop.step()
            if time.perf_counter() - started_s > _MOST_WAIT_S:
                raise TurnFailedError("a session's KV does not get into the host tier")
        return time.perf_counter() - started_s

    def release_s(self, session: SessionId) -> float:
        """Give a session's KV back; seconds that the loop takes for it."""
        started_s = time.perf_counter()
        self.loop.handle(ReleaseContext(session=session))
        took_s = time.perf_counter() - started_s
        self.loop.step()
        return took_s

    def overwrite(self) -> None:
        """Have another session take every block of the device, so that others' KV is gone there."""
        vocabulary = self.loaded.spec.vocab_size
        tokens = self.stats.total_blocks * self.loaded.block_size
        number = next(self._names)
        ids = [(7919 * number + 31 * at) % vocabulary for at in range(tokens - 8)]
        session = self.open([], salt=b"another user")
        self.turn(session, ids, 1)
        self.end(session)

    def cut(self, session: SessionId, tokens: int) -> None:
        """Keep a session's first ids."""
        self.loop.handle(TruncateContext(session=session, length=tokens))

    def end(self, session: SessionId) -> None:
        """Close a session."""
        self.loop.handle(CloseContext(session=session))
        self.loop.step()

    @property
    def stats(self) -> EngineStats:
        """What the engine counts."""
        return cast("EngineStats", self.loop.answer(GetStats()))

    @property
    def host(self) -> TierStats:
        """What it counts of the host tier."""
        return self.stats.tiers["host"]

    def close(self) -> list[str]:
        """End it; returns what the auditor finds, and whether somebody still has blocks."""
        while self.loop.rest_s is not None:  # what idle time has begun to write
            self.loop.step()
        answer = cast("AuditReport", self.loop.answer(GetAudit()))
        found = list(answer.violations)
        if answer.active_blocks:
            found.append(f"{answer.active_blocks} blocks are active and no session is open")
        self.loop.close()
        return found
