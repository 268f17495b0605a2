"""An input that is too long for any context: refused, or its end is kept and that is told."""

import pytest

from engine.ipc.messages import SubmitTurn
from sessiond.domain import ContextChanged, InputItem, PolicyChoice
from sessiond.errors import RequestError
from sessiond.sessions.fit import keep_end
from tests.harness.service import ANN, World, ask, entries, items, message, rendered
from tests.sessions.trimmed import PREFIX, changes

KEEP_END = PolicyChoice(type="sliding_window", oversize="keep_end")
TEXT = "".join(chr(ord("a") + number % 26) for number in range(5000))


async def encode(part) -> tuple[int, ...]:
    return (*rendered(*((item.role, item.text) for item in part)), 999)


class TestEnd:
    @pytest.mark.parametrize("most", [5, 6, 90, 4000])
    async def test_as_much_of_the_end_is_kept_as_fits(self, most: int) -> None:
        ids = await keep_end(items(TEXT), most, encode)
        assert ids == (*message("user", TEXT[-(most - 4) :]), 999)

    @pytest.mark.parametrize("most", [-3, 0, 4])
    async def test_nothing_is_not_the_end_of_anything(self, most: int) -> None:
        assert await keep_end(items(TEXT), most, encode) is None

    async def test_last_messages_stay_whole_and_the_one_before_them_is_cut(self) -> None:
        part = items("first", TEXT, ("assistant", "no"), "last")
        behind = [*message("assistant", "no"), *message("user", "last"), 999]
        ids = await keep_end(part, len(behind) + 13, encode)
        assert list(ids) == message("user", TEXT[-10:]) + behind
        ids = await keep_end(part, len(behind) + 3, encode)
        assert list(ids) == behind, "no message without text"

    async def test_thousands_of_short_messages_are_not_each_tried(self) -> None:
        part, tries = items(*("x" for _ in range(4096))), 0

        async def counted(some) -> tuple[int, ...]:
            nonlocal tries
            tries += 1
            return await encode(some)

        most = len(message("user", "x")) * 1000 + 1
        ids = await keep_end(part, most, counted)
        assert ids == await encode(part[-1000:])
        assert tries <= 16

    async def test_what_fits_is_whole(self) -> None:
        part = items("one", "two")
        assert await keep_end(part, 100, encode) == await encode(part)

    async def test_a_letter_of_several_tokens_is_not_cut(self) -> None:
        ids = await keep_end((InputItem(role="user", text="ä" * 100),), 4 + 7, encode)
        assert ids == (*message("user", "ä" * 3), 999)


@pytest.fixture
async def world(url, engine):
    world = await World.start(url, engine, policy=KEEP_END)
    yield world
    await world.stop()


async def test_the_end_is_kept_where_policy_and_request_say_so_and_the_client_is_told(
    world, engine
) -> None:
    turn = await world.begin(ask(TEXT, truncation="auto", max_output_tokens=40))
    told = await entries(turn)
    kept = 1024 - len(PREFIX) - 2 - 40
    text = TEXT[-(kept - 4) :]
    assert engine.sent(SubmitTurn)[-1].ids == [*PREFIX, *message("user", text), 259]
    session = turn.accepted.session_id
    assert changes(told) == [
        ContextChanged(
            session_id=session,
            reason="oversize",
            dropped_turns=0,
            tokens_before=len(PREFIX) + len(message("user", TEXT)) + 1,
            tokens_after=len(PREFIX) + kept,
            context="trimmed",
        )
    ]
    assert told[-1].usage.context == "trimmed"
    assert engine.contexts[session] == await world.context(session)
    stored = await world.service.inspector.input_items(ANN, turn.accepted.response_id)
    assert stored.items[0].text == TEXT, "what was said stays as it was said"


async def test_earlier_turns_go_first_and_the_next_one_goes_on(world, engine) -> None:
    turn, _ = await world.turn(ask("hello"))
    session = turn.accepted.session_id
    long = await world.begin(
        ask(TEXT, truncation="auto", max_output_tokens=40, conversation=session)
    )
    told = changes(await entries(long))
    assert [change.reason for change in told] == ["trimmed", "oversize"]
    assert told[0].dropped_turns == 1
    assert engine.contexts[session] == await world.context(session)
    _, finished = await world.turn(ask("short", conversation=session))
    assert finished.status == "completed"


@pytest.mark.parametrize(
    ("policy", "truncation"),
    [
        (KEEP_END, None),
        (KEEP_END, "disabled"),
        (PolicyChoice(type="sliding_window"), "auto"),
    ],
)
async def test_else_it_is_refused_before_any_work(world, engine, policy, truncation) -> None:
    with pytest.raises(RequestError) as refused:
        await world.begin(ask(TEXT, truncation=truncation, policy=policy))
    assert refused.value.code in {"context_length_exceeded", "request_too_large"}
    assert engine.sent(SubmitTurn) == []


async def test_what_fits_is_never_cut(world, engine) -> None:
    turn = await world.begin(ask("x" * 900, truncation="auto"))
    assert changes(await entries(turn)) == []
    assert len(engine.sent(SubmitTurn)[-1].ids) == len(PREFIX) + 900 + 4
