"""What a cut costs when tiers have to be told of it."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from engine.kv.context import Context
from engine.kv.eviction import UsageBook
from engine.kv.executor import Executor
from engine.kv.offload import StaleCopies
from tests.harness.loop import Engine

PAGES = 64
LONG = [number % 250 for number in range(16 * PAGES)]
OTHERS = 20


def stale_copies_of(memory: Executor) -> StaleCopies:
    return StaleCopies(memory.contexts, usage=memory.usage, kv_transfer=memory.kv_transfer)


@pytest.fixture
def crowd(make_engine: Callable[..., Engine]) -> Engine:
    """One long session, and others that begin like it, go on apart, and are short."""
    engine = make_engine(num_blocks=512, max_num_batched_tokens=512)
    engine.open("long")
    engine.turn("long", LONG, max_output_tokens=1)
    for number in range(OTHERS):
        engine.open(f"other {number}")
        engine.turn(f"other {number}", [*LONG[:32], 240, number] * 2, max_output_tokens=1)
    return engine


def test_pages_that_another_has_are_wanted_whatever_comes_behind(crowd: Engine) -> None:
    memory = crowd.loop.memory
    context = memory.contexts["long"]
    keys = context.keys(PAGES)[:PAGES]
    unwanted = stale_copies_of(memory).unwanted(context.salt, enumerate(keys), closed=context)
    assert unwanted == keys[2:], "the first 32 ids are everybody's"
    assert stale_copies_of(memory).unwanted(context.salt, enumerate(keys)) == []
    assert stale_copies_of(memory).unwanted(b"another user", enumerate(keys)) == keys


def test_sessions_that_share_nothing_are_looked_at_once_and_not_for_every_page(
    crowd: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    has = Context.has
    monkeypatch.setattr(Context, "has", lambda *about: looks.append(about) or has(*about))
    memory = crowd.loop.memory
    context = memory.contexts["long"]
    keys = context.keys(PAGES)[:PAGES]
    stale_copies_of(memory).unwanted(context.salt, enumerate(keys), closed=context)
    assert len(looks) <= 2 * 3 * OTHERS


def test_a_page_that_its_session_has_again_before_the_next_step_is_kept() -> None:
    """A turn that is sent again at once, with the same text."""
    erased: list[bytes] = []
    kv_transfer = SimpleNamespace(tiers=[object()], erase=erased.extend)
    engine = Engine(num_blocks=64, max_num_batched_tokens=512)
    engine.open("a")
    engine.turn("a", LONG[:64], max_output_tokens=1)
    context = engine.loop.memory.contexts["a"]
    usage = UsageBook()
    usage.open(context.session, context.salt)
    dead = StaleCopies({context.session: context}, usage=usage, kv_transfer=kv_transfer)
    keys = context.keys(4)[:4]
    dead.note(context, 20)
    context.cut(20)
    context.append(LONG[20:50])
    dead.forget()
    assert erased == [keys[3]]
    dead.forget()
    assert len(erased) == 1, "each is told once"
