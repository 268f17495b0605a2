"""Random lives of many conversations against an oracle that has no engine, no SQL and no cache."""

import asyncio
from dataclasses import dataclass, replace
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.plan import KeepTurns
from sessiond.domain import PolicyChoice
from sessiond.errors import RequestError
from tests.harness.service import ANN, DEFAULT, SOCKET, World, ask, finish, items, message, until
from tests.sessions.fake_engine import FakeEngine, reply_to
from tests.soak import SOAK

ENDS = [*["done"] * 8, "prefill", "keep", "drop", "fail", "lose", "leave"]
TEXTS = st.sampled_from(["a", "a", "bb", "bb", "longer text", "longer text", ""])


@dataclass(frozen=True)
class Conversation:
    """What a context must be: a front, and those of its whole turns that the model sees."""

    instructions: str | None = None
    turns: tuple[tuple[int, ...], ...] = ()
    tip: str | None = None
    awaits_reply: bool = False

    @property
    def ids(self) -> list[int]:
        system_prefix = message(
            "system", DEFAULT if self.instructions is None else self.instructions
        )
        return system_prefix + [token for ids in self.turns for token in ids]

    @property
    def finished(self) -> int:
        return len(self.turns) - (self.awaits_reply and bool(self.turns))

    def grown(self, ids, *, tip, awaits_reply) -> "Conversation":
        if self.awaits_reply and self.turns:
            turns = (*self.turns[:-1], (*self.turns[-1], *ids))
        else:
            turns = (*self.turns, tuple(ids)) if ids else self.turns
        return replace(self, turns=turns, tip=tip, awaits_reply=awaits_reply)


@dataclass(frozen=True)
class Turn:
    where: int  # 0: a new session; else one of those there are
    back: int | None  # after a response, so many before the last there is; None: after the tip
    text: str
    instructions: str | None
    end: str
    beside: bool  # another turn is begun on the same tip while this one runs
    edit: str | None  # how a policy drops turns before it
    keep: int  # which ones stay, as bits
    rebuilt: bool  # the KV of a shifted context is lost, and computed from what is visible


@dataclass(frozen=True)
class Op:
    kind: str
    where: int


turns = st.builds(
    Turn,
    where=st.sampled_from([*[1] * 6, 2, 2, 3, 0]),
    back=st.sampled_from([*[None] * 6, 0, 1, 2, 3]),
    text=TEXTS,
    instructions=st.sampled_from([*[None] * 10, "", "be brief"]),
    end=st.sampled_from(ENDS),
    beside=st.booleans(),
    edit=st.sampled_from([*[None] * 4, "exact", "shifted", "shifted"]),
    keep=st.integers(0, 7),
    rebuilt=st.sampled_from([False, False, False, True]),
)
ops = st.builds(
    Op,
    kind=st.sampled_from(
        ["restart", "lose", "detach", "reset", "close", "items", "fork", "rewind"]
    ),
    where=st.integers(0, 5),
)
# A union of strategies would draw ops as often as turns, and hardly a fork would find its parent.
steps = st.sampled_from([*[turns] * 9, ops]).flatmap(lambda kind: kind)


class Life:
    """Does each step twice: with the service, and in `sessions` and `responses`."""

    def __init__(self, url):
        self.url = url
        self.ids = count(1)
        self.sessions: dict[str, Conversation] = {}
        self.responses: dict[str, Conversation] = {}
        self.homes: dict[str, str] = {}  # of each response: the session that it was made in
        self.parents: dict[str, str | None] = {}
        self.seen: dict[str, Conversation] = {}  # responses of closed sessions, too

    async def live(self, steps):
        await self.start()
        try:
            for step in steps:
                await (self.turn(step) if isinstance(step, Turn) else self.op(step))
                await self.check()
        finally:
            await self.world.stop()

    async def start(self):
        self.engine = FakeEngine()
        self.world = await World.start(self.url, self.engine, self.ids)

    async def check(self):
        for session, expected in self.sessions.items():
            record = await self.world.store.find_session("ann", session)
            assert record.tip_id == expected.tip
            assert await self.world.context(session) == expected.ids
            placed = await self.placed(session)
            # With a view: a turn that was lost had begun with less.
            if placed and placed.tip_id == expected.tip and placed.view is None:
                known = self.engine.contexts[session]
                if placed.tip_id is None:
                    assert known == []
                elif placed.prompt_id == record.prompt.id:
                    assert known == expected.ids

    async def placed(self, session):
        """What the service takes the engine to hold: it does, and would make it again from SQL."""
        live = self.world.service.live.get(session)
        if live is None or not live.is_resident(self.engine.epoch):
            return None
        placed, engine = live.residency, self.engine
        assert len(engine.contexts[session]) == placed.tokens
        if placed.tip_id is not None:
            stored = await self.world.store.context(
                "ann", placed.prompt_id, placed.tip_id, placed.view
            )
            assert (engine.held[session], engine.edits[session]) == (
                stored.ids,
                list(stored.edits),
            )
        return placed

    def pick(self, where):
        names = list(self.sessions)
        return names[where % len(names)] if names and where else None

    async def turn(self, step):
        where, expected, stays = self.place(step)
        request = replace(
            ask(*([step.text] if step.text else [])),
            generate=step.end != "prefill",
            **where,
            **({} if step.instructions is None else {"instructions": step.instructions}),
        )
        expected = change_system_prefix(expected, step.instructions)
        if not request.input and request.generate and not expected.awaits_reply:
            with pytest.raises(RequestError, match="unless a message awaits a reply"):
                await self.world.begin(request)
            return
        request, expected = self.edited(step, request, expected)
        self.engine.auto = False
        turn = await self.world.begin(request)
        self.engine.auto = True
        session = turn.accepted.session_id
        assert (session in self.sessions) == stays
        await self.check_placed(session, expected)
        if not stays:
            self.sessions[session] = self.before(expected, where)
        await self.run(turn, rebuilt=step.rebuilt)
        if step.beside and expected.tip is not None:
            await self.fork(expected.tip)
        await self.end(step.end, turn, expected, request)

    def edited(self, step, request, expected):
        """With a policy that drops turns; a first turn has none to drop."""
        if step.edit is None or expected.tip is None:
            return request, expected
        kept = [at for at in range(expected.finished) if step.keep >> at % 3 & 1]
        self.world.policies.scripted.plans.append(KeepTurns(turns=kept))
        pending = expected.turns[expected.finished :]
        turns = (*(expected.turns[at] for at in kept), *pending)
        policy = PolicyChoice(type="scripted", fidelity=step.edit)
        return replace(request, policy=policy), replace(expected, turns=turns)

    async def check_placed(self, session, expected):
        """While the turn runs the engine holds what it sees."""
        assert await self.placed(session)
        if expected.tip is not None:
            assert self.engine.contexts[session] == expected.ids

    async def run(self, turn, *, rebuilt):
        """It runs; `rebuilt`: on a context whose edits had to be forgotten, if there are any."""
        session, name = turn.accepted.session_id, turn.accepted.response_id
        rebuilt = rebuilt and bool(self.engine.edits[session])
        self.engine.begin(name, rebuilt_exact=rebuilt)
        if rebuilt:
            live = self.world.service.live.get(session)
            await until(lambda: live.residency.view and live.residency.view.fidelity == "exact")
            await self.placed(session)

    def place(self, step):
        session = self.pick(step.where)
        if session is None:
            return {}, Conversation(), False
        expected = self.sessions[session]
        names = list(self.responses)
        if step.back is None or not names:
            return {"conversation": session}, expected, True
        name = names[-1 - step.back % len(names)]
        stays = self.sessions[self.homes[name]].tip == name
        return {"previous_response_id": name}, self.responses[name], stays

    def before(self, expected, where):
        """What a session that was just opened has before its first turn ends."""
        if where:
            return self.responses[where["previous_response_id"]]
        return replace(expected, turns=(), tip=None, awaits_reply=False)

    async def fork(self, tip):
        turn, finished = await self.world.turn(ask("beside", previous_response_id=tip))
        assert turn.accepted.session_id not in self.sessions
        base = self.responses[tip]
        self.keep(turn, base, finished.text, items("beside"), generate=True)

    async def end(self, end, turn, expected, request):
        name, engine = turn.accepted.response_id, self.engine
        if end in {"done", "prefill"}:
            engine.say(name)
            engine.finish(name)
        elif end in {"keep", "drop"}:
            engine.say(name, "half")
            turn.cancel(keep=end == "keep")
        elif end == "fail":
            engine.fail(name, "internal_error")
        elif end == "lose":
            engine.lose()
        else:
            await self.world.service.housekeeping.detach(SOCKET)
            self.world.service.housekeeping.attach(SOCKET)
        finished = await finish(turn)
        if end == "done":
            assert finished.text.encode() == bytes(reply_to(self.prompt(expected, request)))
        if end in {"done", "prefill", "keep"}:
            self.keep(turn, expected, finished.text, request.input, generate=request.generate)

    def prompt(self, expected, request):
        return [*expected.ids, *delta(request.input, generate=request.generate)]

    def keep(self, turn, base, text, said, *, generate):
        name, session = turn.accepted.response_id, turn.accepted.session_id
        reply = (*text.encode(), 256, 10) if generate else ()
        awaits = not generate and (bool(said) or base.awaits_reply)
        ids = (*delta(said, generate=generate), *reply)
        kept = base.grown(ids, tip=name, awaits_reply=awaits)
        self.note(session, name, base, kept)

    def note(self, session, name, base, kept):
        self.sessions[session] = self.responses[name] = self.seen[name] = kept
        self.homes[name] = session
        self.parents[name] = base.tip

    def ancestors(self, name):
        while name is not None:
            yield name
            name = self.parents[name]

    async def op(self, step):
        session = self.pick(step.where)
        service = self.world.service
        if step.kind == "restart":
            await self.world.stop()
            await self.start()
        elif step.kind == "lose":
            self.engine.lose()
        elif step.kind == "detach":
            await service.housekeeping.detach(SOCKET)
            service.housekeeping.attach(SOCKET)
        elif session is None:
            pass
        elif step.kind == "reset":
            await service.conversations.reset(ANN, session)
            at = self.sessions[session]
            self.sessions[session] = Conversation(instructions=at.instructions)
        elif step.kind == "close":
            await service.conversations.close(ANN, session)
            del self.sessions[session]
            self.responses = {
                name: at for name, at in self.responses.items() if self.homes[name] != session
            }
        elif step.kind == "fork":
            view = await service.openings.fork(ANN, session)
            self.sessions[view.id] = self.sessions[session]
        elif step.kind == "rewind":
            names = list(self.ancestors(self.sessions[session].tip))
            if names:
                name = names[step.where % len(names)]
                await service.conversations.reset(ANN, session, name)
                self.sessions[session] = self.seen[name]
        else:
            await service.conversations.add_items(ANN, session, items("added"))
            record = await self.world.store.find_session("ann", session)
            at = self.sessions[session]
            ids = message("user", "added")
            kept = at.grown(ids, tip=record.tip_id, awaits_reply=True)
            self.note(session, record.tip_id, at, kept)


def change_system_prefix(at, instructions):
    return at if instructions is None else replace(at, instructions=instructions or None)


def delta(said, *, generate):
    ids = [token for item in said for token in message(item.role, item.text)]
    return [*ids, 259] if generate else ids


@pytest.mark.second
@pytest.mark.timeout(3600 if SOAK else 900)
@settings(
    max_examples=2000 if SOAK else 30,
    derandomize=not SOAK,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(steps=st.lists(steps, min_size=8, max_size=20))
def test_every_context_is_what_the_oracle_says(lend_database, steps):
    with lend_database() as url:
        asyncio.run(Life(url).live(steps))
