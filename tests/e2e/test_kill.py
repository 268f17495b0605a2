"""`kill -9` of the whole server at random moments, while conversations go on."""

import asyncio
import random
from dataclasses import dataclass, field

import pytest
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from benchmarks.load_client import LoadClient
from benchmarks.server_process import running_server
from sessiond.store.records import SessionChoice
from sessiond.store.store import Store
from tests.soak import SOAK, seed_of

GREEDY = {"temperature": 0, "max_output_tokens": 24}
TOPICS = (
    "the sea",
    "a lighthouse",
    "three cats",
    "old maps",
    "the moon",
    "bread",
    "rain",
    "trains",
)
QUESTIONS = ("Tell me about {}.", "Tell me more.", "And why is that?", "Sum it up in one sentence.")
EVENTS = 100  # of one conversation, and more, where replies run to their limits
HALF_AN_HOUR_S = 1800
# Part of the test's name; the variable repeats the moments of an earlier run.
SEED = seed_of("KILL_SEED")


@dataclass(frozen=True)
class Plan:
    """How many conversations, and how often the server is killed meanwhile."""

    sessions: int
    kills: int


PLANS = {
    "sqlite": Plan(sessions=32, kills=20) if SOAK else Plan(sessions=6, kills=3),
    "postgres": Plan(sessions=8, kills=6) if SOAK else Plan(sessions=3, kills=2),
}


@dataclass
class Run:
    """One run's state: which server, what was acknowledged, when to kill."""

    server: object
    up: asyncio.Event = field(default_factory=asyncio.Event)
    events: int = 0
    acknowledged: dict[str, str] = field(default_factory=dict)  # response id to text
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    kill_at: int = 0

    def saw_event(self):
        self.events += 1
        if self.events >= self.kill_at:
            self.reached.set()

    async def ask(self, text, tip):
        """One turn, as often as it takes until it is acknowledged."""
        while True:
            await self.up.wait()
            try:
                async with LoadClient(self.server.url, **GREEDY) as client:
                    client.tip = tip
                    turn = await client.send(text)
                    while turn.end is None:
                        turn.feed(await client.socket.recv(), at_s=0.0)
                        self.saw_event()
            except (OSError, ConnectionClosed, InvalidHandshake):
                await asyncio.sleep(0)
                continue
            assert turn.end.outcome in {"completed", "incomplete"}, turn.end
            self.acknowledged[turn.end.tip] = turn.text
            return turn

    async def converse(self, topic):
        tip, replies = None, []
        for question in QUESTIONS:
            turn = await self.ask(question.format(topic), tip)
            tip = turn.end.tip
            replies.append(turn.text)
        return replies

    async def kill(self, events_from_now, talks):
        """Kill after so many events, or once all talks are over: replies may be shorter."""
        self.kill_at = self.events + events_from_now
        self.reached.clear()
        reached, over = asyncio.create_task(self.reached.wait()), asyncio.gather(*talks)
        await asyncio.wait([reached, over], return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        self.up.clear()
        await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.server.start)
        self.up.set()


def topics(plan):
    return [f"{TOPICS[n % len(TOPICS)]} of number {n}" for n in range(plan.sessions)]


async def undisturbed(server, plan):
    run = Run(server)
    run.up.set()
    return await asyncio.gather(*map(run.converse, topics(plan)))


@pytest.mark.soak
@pytest.mark.timeout(HALF_AN_HOUR_S if SOAK else 900)
@pytest.mark.parametrize("seed", [SEED])
async def test_every_acknowledged_turn_is_there_and_no_half_turn_is_in_any_context(
    database_kind, lend_database, tmp_path, server, seed
):
    plan = PLANS[database_kind]
    chance = random.Random(seed)
    with lend_database(migrated=False) as db, running_server(tmp_path / "killed", db=db) as killed:
        run = Run(killed)
        run.up.set()
        talks = [asyncio.create_task(run.converse(topic)) for topic in topics(plan)]
        for _ in range(plan.kills):
            events = chance.randrange(1, EVENTS * plan.sessions // (plan.kills + 1))
            await run.kill(events, talks)
        replies = await asyncio.gather(*talks)
        assert replies == await undisturbed(server, plan)
        for response_id, text in run.acknowledged.items():
            response = killed.get(f"/v1/responses/{response_id}")
            assert response["status"] in {"completed", "incomplete"}
            assert response["output"][0]["content"][0]["text"] == text
        assert await half_turns(db) > 0  # else nothing was tried


async def test_r06_a_user_at_its_limit_can_go_on_at_once_after_a_kill(url, tmp_path):
    with running_server(tmp_path, db=url) as server:
        server.put("/admin/users/local/quota", {"max_concurrent_turns": 1})
        async with LoadClient(server.url, temperature=0) as client:
            turn = await client.send("Tell me all about the sea.", max_output_tokens=1000)
            while not turn.text:
                turn.feed(await client.socket.recv(), at_s=0.0)
            await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        async with LoadClient(server.url, **GREEDY) as client:
            again = await client.ask("Tell me all about the sea.")
        assert again.end.outcome in {"completed", "incomplete"}, again.end


async def half_turns(db):
    """Turns that were cut, none of which is in any context."""
    store, count = Store(db), 0
    try:
        sessions, _ = await store.list_sessions(
            SessionChoice(user_id="local"), limit=1000, after=None
        )
        for found in sessions:
            detail = await store.session_detail("local", found.session.id, limit=10_000)
            assert {turn.status for turn in detail.context} <= {"completed", "incomplete"}
            assert {turn.status for turn in detail.others} <= {"failed", "cancelled"}
            count += len(detail.others)
    finally:
        await store.close()
    return count
