"""Commits that fail, and those of which nobody knows whether they held."""

import pytest

from sessiond.errors import RequestError
from sessiond.sessions import stream
from sessiond.store.errors import StoreError
from tests.harness.service import ask, rendered


@pytest.fixture(autouse=True)
def no_second_try(monkeypatch):
    monkeypatch.setattr(stream, "_COMMIT_PAUSES_S", (None,))


def fail_once(world, monkeypatch, name, *, held=False):
    """The next call raises, after (`held`) it has done its work."""
    real = getattr(world.store, name)

    async def fail(*args, **kwargs):
        monkeypatch.setattr(world.store, name, real)
        if held:
            await real(*args, **kwargs)
        raise StoreError("as the test wants")

    monkeypatch.setattr(world.store, name, fail)


async def context_after_failed_commit(world, monkeypatch, *, held):
    """A turn, one whose commit fails, and one that names the first; the last one's context."""
    first, replied = await world.turn(ask("hi"))
    fail_once(world, monkeypatch, "commit_turn", held=held)
    if held:
        fail_once(world, monkeypatch, "abort_turn")
    session, tip = first.accepted.session_id, first.accepted.response_id
    _, lost = await world.turn(ask("lost", conversation=session))
    assert lost.status == "failed"
    third, found = await world.turn(ask("b", previous_response_id=tip))
    right = rendered(("system", "be good"), ("user", "hi"), ("assistant", replied.text))
    right += rendered(("user", "b"), ("assistant", found.text))
    assert await world.context(third.accepted.session_id) == right
    return third.accepted.session_id == session


async def test_a_response_id_names_the_same_context_though_a_lost_turn_was_stored_behind_it(
    world, monkeypatch
):
    assert not await context_after_failed_commit(world, monkeypatch, held=True)


async def test_a_commit_that_did_not_hold_leaves_the_tip_where_it_was(world, monkeypatch):
    assert await context_after_failed_commit(world, monkeypatch, held=False)


async def test_why_a_turn_could_not_be_begun_stands_in_the_log(world, monkeypatch, caplog):
    fail_once(world, monkeypatch, "begin_turn")
    with pytest.raises(RequestError):
        await world.begin(ask("hi"))
    assert "could not be stored: as the test wants" in caplog.text
