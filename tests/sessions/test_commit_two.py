"""The commit of a reply: told after it holds, and undone when it does not."""

import pytest

from engine.ipc.messages import TruncateContext
from sessiond.errors import RequestError
from sessiond.store.errors import StoreError
from tests.harness.service import (
    ANN,
    ask,
    finish,
)
from tests.sessions.talking import speaking, talk

__all__ = ["talk"]


class TestCommitTwo:
    @pytest.fixture
    def pauses(self, monkeypatch):
        monkeypatch.setattr("sessiond.sessions.stream._COMMIT_PAUSES_S", (0.0, 0.0, None))
        monkeypatch.setattr("sessiond.sessions.stream._RETRIES_S", 60.0)

    def failing(self, world, monkeypatch, name, times, *, after=False):
        real = getattr(world.store, name)
        left = [times]

        async def fail(*args, **kwargs):
            if left[0] == 0:
                return await real(*args, **kwargs)
            left[0] -= 1
            if after:
                await real(*args, **kwargs)
            raise StoreError("as the test wants")

        monkeypatch.setattr(world.store, name, fail)

    async def test_is_tried_again(self, world, engine, talk, monkeypatch, pauses):
        self.failing(world, monkeypatch, "commit_turn", 2)
        turn = await speaking(world, engine, conversation=talk[0])
        engine.finish(turn.accepted.response_id)
        assert (await finish(turn)).status == "completed"
        assert await world.context(talk[0]) == engine.contexts[talk[0]]

    async def test_that_held_although_it_raised_is_not_done_twice(
        self, world, engine, talk, monkeypatch, pauses
    ):
        self.failing(world, monkeypatch, "commit_turn", 1, after=True)
        turn = await speaking(world, engine, conversation=talk[0])
        engine.finish(turn.accepted.response_id)
        assert (await finish(turn)).status == "completed"
        page = await world.service.conversations.list_items(ANN, talk[0])
        assert len(page.items) == 4

    async def test_that_fails_for_good_rolls_the_context_back(
        self, world, engine, talk, monkeypatch, pauses
    ):
        session, _, before = talk
        self.failing(world, monkeypatch, "commit_turn", 3)
        turn = await speaking(world, engine, conversation=session)
        engine.finish(turn.accepted.response_id)
        finished = await finish(turn)
        assert (finished.status, finished.error.code) == ("failed", "internal_error")
        assert finished.usage.output_tokens == 4
        assert engine.sent(TruncateContext) == [
            TruncateContext(session=session, length=len(before))
        ]
        assert engine.contexts[session] == before == await world.context(session)
        engine.auto = True
        await world.turn(ask("b", conversation=session))
        assert await world.context(session) == engine.contexts[session]

    async def test_of_which_nobody_knows_whether_it_held_is_looked_up_before_the_next_turn(
        self, world, engine, talk, monkeypatch, pauses
    ):
        session = talk[0]
        self.failing(world, monkeypatch, "commit_turn", 3, after=True)
        self.failing(world, monkeypatch, "abort_turn", 1)
        turn = await speaking(world, engine, conversation=session)
        engine.finish(turn.accepted.response_id)
        assert (await finish(turn)).status == "failed"
        engine.auto = True
        await world.turn(ask("b", conversation=session))
        assert await world.context(session) == engine.contexts[session]

    async def test_one_that_fails_leaves_no_session_that_was_new(self, world, engine, monkeypatch):
        self.failing(world, monkeypatch, "begin_turn", 1)
        with pytest.raises(RequestError) as error:
            await world.begin(ask("hi"))
        assert error.value.code == "internal_error"
        assert engine.commands == []
        await world.turn(ask("hi"))
