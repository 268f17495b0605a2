"""Turns through the whole service: what is stored, what the engine is told, what the client is."""

import msgspec
import pytest

from engine.ipc.messages import SetContext, SubmitTurn
from sessiond.domain import ContextChanged, TextDelta, TurnBegun, TurnFinished
from sessiond.errors import RequestError
from tests.harness.service import ANN, BOB, DEFAULT, SOCKET, ask, entries, finish, message, rendered
from tests.sessions.fake_engine import reply_to, text_of


async def test_a_first_turn_is_the_templates_own_rendering(world, engine):
    turn, finished = await world.turn(ask("hi"))
    prompt = [*rendered(("system", DEFAULT), ("user", "hi")), 259]
    set_context, submit = engine.commands
    assert set_context.ids + submit.ids == prompt
    assert finished.status == "completed"
    assert finished.text == text_of(reply_to(prompt))
    assert finished.usage.new_tokens == finished.usage.input_tokens == len(prompt)
    assert turn.accepted.previous_response_id is None
    assert turn.accepted.instructions is None


async def test_facts_come_in_order_and_end_with_the_one_ending(world):
    told = await entries(await world.begin(ask("hi")))
    assert [type(entry) for entry in told] == [TurnBegun, TextDelta, TurnFinished]


async def test_only_new_ids_are_sent_on_later_turns(world, engine):
    turn, _ = await world.turn(ask("hi"))
    _, finished = await world.turn(ask("more", previous_response_id=turn.accepted.response_id))
    assert len(engine.sent(SetContext)) == 1
    assert engine.sent(SubmitTurn)[1].ids == [*rendered(("user", "more")), 259]
    assert (
        finished.usage.reused_tokens
        == len(engine.sent(SetContext)[0].ids)
        + len(engine.sent(SubmitTurn)[0].ids)
        + len(reply_to([]))
        + 2
    )


async def test_t24_the_context_of_turn_two_starts_with_exactly_the_ids_of_turn_one(world, engine):
    turn, finished = await world.turn(ask("hi"))
    session = turn.accepted.session_id
    first = await world.context(session)
    assert first == rendered(("system", DEFAULT), ("user", "hi"), ("assistant", finished.text))
    assert engine.contexts[session] == first
    await world.turn(ask("more", conversation=session))
    second = await world.context(session)
    assert second[: len(first)] == first
    assert second.count(256) == first.count(256) + 2  # one end of turn per message
    assert engine.contexts[session] == second


async def test_a_reply_is_never_tokenised_again(world, engine):
    """Ids that no encoding gives stay as they are, even those that stand for no text."""
    engine.auto = False
    turn = await world.begin(ask("hi"))
    engine.begin(turn.accepted.response_id)
    engine.say(turn.accepted.response_id, [0xE2, 0x82, 263, 72])
    engine.finish(turn.accepted.response_id)
    await finish(turn)
    context = await world.context(turn.accepted.session_id)
    assert context[-6:] == [0xE2, 0x82, 263, 72, 256, 10]


async def test_the_ending_is_told_after_commit_two_and_the_session_is_free_then(world):
    turn = await world.begin(ask("hi"))
    async for entry in turn.entries():
        if isinstance(entry, TurnFinished):
            record = await world.store.find_session("ann", turn.accepted.session_id)
            assert record.tip_id == turn.accepted.response_id
            await world.turn(ask("more", conversation=turn.accepted.session_id))


async def test_a_conversation_that_is_unknown_or_foreign_is_not_found(world):
    turn, _ = await world.turn(ask("hi"))
    for caller, session in ((ANN, "conv_none"), (BOB, turn.accepted.session_id)):
        with pytest.raises(RequestError) as error:
            await world.bind(ask("x", conversation=session), caller=caller)
        assert error.value.code == "conversation_not_found"
    for caller, response in ((ANN, "resp_none"), (BOB, turn.accepted.response_id)):
        with pytest.raises(RequestError) as error:
            await world.bind(ask("x", previous_response_id=response), caller=caller)
        assert error.value.code == "previous_response_not_found"


async def test_a_session_that_is_in_memory_is_not_found_by_others_either(world, engine):
    engine.auto = False
    turn = await world.begin(ask("hi"))
    with pytest.raises(RequestError) as error:
        await world.bind(ask("x", conversation=turn.accepted.session_id), caller=BOB)
    assert error.value.code == "conversation_not_found"


async def test_conversation_and_previous_response_exclude_each_other(world):
    turn, _ = await world.turn(ask("hi"))
    both = ask(
        "x",
        conversation=turn.accepted.session_id,
        previous_response_id=turn.accepted.response_id,
    )
    with pytest.raises(RequestError) as error:
        await world.bind(both)
    assert (error.value.code, error.value.status) == ("invalid_value", 400)


async def test_another_model_is_not_found(world, engine):
    await world.turn(ask("hi", model=engine.info.model))
    with pytest.raises(RequestError) as error:
        await world.bind(ask("hi", model="gpt-9"))
    assert error.value.code == "model_not_found"


async def test_salts_are_the_callers(world, engine):
    await world.turn(ask("hi"))
    world.service.housekeeping.attach(SOCKET)
    await world.turn(ask("hi"), caller=BOB)
    assert [command.salt for command in engine.sent(SetContext)] == [b"ann", b"bob"]


async def test_sampling_reaches_the_engine_and_a_missing_seed_is_drawn_and_stored(world, engine):
    chosen = {"temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "stop": ("x",)}
    turn, _ = await world.turn(ask("hi", max_output_tokens=7, **chosen))
    submit = engine.sent(SubmitTurn)[0]
    assert submit.max_output_tokens == 7
    assert submit.stop_ids == [256]
    sampling = submit.sampling
    assert {name: getattr(sampling, name) for name in chosen} == chosen
    row = await world.store.find_turn("ann", turn.accepted.response_id)
    assert row.seed == sampling.seed > 0
    await world.turn(ask("hi", seed=-3))
    assert engine.sent(SubmitTurn)[1].sampling.seed == 2**63 - 3


async def test_the_engine_is_told_what_a_next_message_begins_with(world, engine):
    turn, _ = await world.turn(ask("hi"))
    drafts = engine.sent(SubmitTurn)[0].draft_ids
    assert drafts == message("user", "")[:1]
    await world.turn(ask("more", conversation=turn.accepted.session_id))
    assert engine.sent(SubmitTurn)[1].ids[: len(drafts)] == drafts


class TestInstructions:
    async def test_absent_null_and_equal_change_nothing(self, world, engine):
        turn, _ = await world.turn(ask("hi", instructions="be brief"))
        session = turn.accepted.session_id
        await world.turn(ask("a", conversation=session))
        await world.turn(ask("b", conversation=session, instructions=None))
        turn, _ = await world.turn(ask("c", conversation=session, instructions="be brief"))
        assert len(engine.sent(SetContext)) == 1
        assert turn.accepted.instructions == "be brief"

    async def test_different_ones_replace_the_front_and_the_client_is_told(self, world, engine):
        turn, finished = await world.turn(ask("hi", instructions="be brief"))
        session = turn.accepted.session_id
        before = await world.context(session)
        turn = await world.begin(ask("a", conversation=session, instructions="be very brief"))
        told = await entries(turn)
        after = rendered(("system", "be very brief"), ("user", "hi"), ("assistant", finished.text))
        assert told[0] == ContextChanged(
            session_id=session,
            reason="instructions",
            dropped_turns=0,
            tokens_before=len(before),
            tokens_after=len(after),
        )
        assert engine.sent(SetContext)[1].ids == after
        # A front that no turn has computed is new; what was said under it is computed again.
        # The reply's last token and what is owed after it were never fed.
        assert [command.computed for command in engine.sent(SetContext)] == [0, len(after) - 3]
        assert told[-1].usage.cached_tokens == 0
        assert (await world.context(session))[: len(after)] == after

    async def test_an_empty_string_clears_them(self, world):
        turn, finished = await world.turn(ask("hi", instructions="be brief"))
        session = turn.accepted.session_id
        turn, _ = await world.turn(ask("a", conversation=session, instructions=""))
        system_prefix = rendered(("system", DEFAULT), ("user", "hi"), ("assistant", finished.text))
        assert (await world.context(session))[: len(system_prefix)] == system_prefix
        assert turn.accepted.instructions is None

    async def test_a_turn_that_is_rolled_back_changes_them_not(self, world, engine):
        turn, _ = await world.turn(ask("hi", instructions="one"))
        session = turn.accepted.session_id
        before = await world.context(session)
        engine.auto = False
        turn = await world.begin(ask("a", conversation=session, instructions="two"))
        turn.cancel(keep=False)
        await finish(turn)
        assert await world.context(session) == before
        engine.auto = True
        turn, _ = await world.turn(ask("b", conversation=session))
        assert turn.accepted.instructions == "one"
        assert engine.contexts[session][: len(before)] == before

    async def test_a_system_message_that_comes_first_stands_in_place_of_the_default(
        self, world, engine
    ):
        turn, finished = await world.turn(ask(("developer", "be brief"), "hi"))
        session = turn.accepted.session_id
        rest = [("user", "hi"), ("assistant", finished.text)]
        assert await world.context(session) == rendered(("system", "be brief"), *rest)
        assert turn.accepted.instructions is None
        page = await world.service.conversations.list_items(ANN, session, order="asc")
        assert [item.role for item in page.items] == ["developer", "user", "assistant"]
        await world.turn(ask("a", conversation=session, instructions="new"))
        system_prefix = rendered(("system", "new"), ("system", "be brief"), *rest)
        assert (await world.context(session))[: len(system_prefix)] == system_prefix

    async def test_later_system_messages_are_messages_at_their_place(self, world):
        turn, _ = await world.turn(ask("hi"))
        session = turn.accepted.session_id
        before = await world.context(session)
        await world.turn(ask(("system", "now in verse"), conversation=session))
        added = rendered(("system", "now in verse"))
        assert (await world.context(session))[len(before) :][: len(added)] == added


class TestPrefillOnly:
    async def test_items_join_the_context_without_a_generation_prompt(self, world, engine):
        turn, finished = await world.turn(ask("hi", generate=False))
        assert (finished.status, finished.text) == ("completed", "")
        context = await world.context(turn.accepted.session_id)
        assert context == rendered(("system", DEFAULT), ("user", "hi"))
        assert engine.sent(SubmitTurn)[0].close_ids == []
        assert engine.sent(SubmitTurn)[0].draft_ids == [], "a reply may be asked for next"

    async def test_the_next_turn_with_empty_input_answers_it(self, world, engine):
        turn, _ = await world.turn(ask("hi", generate=False))
        _, finished = await world.turn(ask(previous_response_id=turn.accepted.response_id))
        prompt = [*rendered(("system", DEFAULT), ("user", "hi")), 259]
        assert finished.text == text_of(reply_to(prompt))
        assert engine.sent(SubmitTurn)[1].ids == [259]

    async def test_with_instructions_only_it_warms_them(self, world):
        turn, _ = await world.turn(ask(instructions="be brief", generate=False))
        session = turn.accepted.session_id
        assert await world.context(session) == rendered(("system", "be brief"))
        turn, _ = await world.turn(ask("hi", conversation=session))
        assert turn.accepted.instructions == "be brief"

    @pytest.mark.parametrize("first", [None, "answered", "warmed"])
    async def test_nothing_to_answer_is_refused(self, world, first):
        where = {}
        if first is not None:
            request = ask("hi") if first == "answered" else ask(instructions="x", generate=False)
            turn, _ = await world.turn(request)
            where = {"conversation": turn.accepted.session_id}
        with pytest.raises(RequestError) as error:
            await world.begin(ask(**where))
        assert (error.value.code, error.value.param) == ("invalid_value", "input")
        await world.turn(ask("the session is free", **where))


class TestRoom:
    """The fake engine's model takes 1,024 tokens, its pool holds as many."""

    @pytest.fixture
    def small_pool(self, engine):
        engine.info = msgspec.structs.replace(engine.info, total_blocks=32)

    @pytest.fixture
    def large_pool(self, engine):
        engine.info = msgspec.structs.replace(engine.info, total_blocks=128)

    async def test_a_conversation_over_the_models_length_is_refused(self, world):
        with pytest.raises(RequestError) as error:
            await world.begin(ask("x" * 1024))
        assert (error.value.code, error.value.status) == ("context_length_exceeded", 400)
        assert "no trimming policy" in error.value.message

    async def test_what_exceeds_the_pool_is_refused_before_any_work(
        self, world, engine, small_pool
    ):
        for request in (ask("x" * 600), ask("hi", max_output_tokens=600)):
            with pytest.raises(RequestError) as error:
                await world.begin(request)
            assert (error.value.code, error.value.status) == ("request_too_large", 413)
        assert engine.commands == []
        page = await world.service.inspector.page(ANN, 10, None)
        assert page.sessions == ()

    async def test_the_default_maximum_is_capped_by_what_fits(self, world, engine, small_pool):
        await world.turn(ask("hi"))
        submit = engine.sent(SubmitTurn)[0]
        before = len(engine.sent(SetContext)[0].ids) + len(submit.ids)
        assert submit.max_output_tokens == 512 - before - 2

    async def test_a_maximum_over_the_models_length_is_the_engines_to_end(
        self, world, engine, large_pool
    ):
        await world.turn(ask("x" * 900, max_output_tokens=5000))
        submit = engine.sent(SubmitTurn)[0]
        before = len(engine.sent(SetContext)[0].ids) + len(submit.ids)
        assert 1024 - before < submit.max_output_tokens == 2048 - before - 2


async def test_ends_of_turns_are_told_as_they_are(world, engine):
    engine.auto = False
    for reason in ("max_output_tokens", "context_length"):
        turn = await world.begin(ask("hi"))
        engine.begin(turn.accepted.response_id)
        engine.say(turn.accepted.response_id, "half")
        engine.incomplete(turn.accepted.response_id, reason)
        finished = await finish(turn)
        assert (finished.status, finished.reason, finished.text) == ("incomplete", reason, "half")
        context = await world.context(turn.accepted.session_id)
        assert context[-6:] == [*b"half", 256, 10]
    turn = await world.begin(ask("hi"))
    engine.fail(turn.accepted.response_id, "request_too_large")
    finished = await finish(turn)
    assert finished.status == "failed"
    assert finished.error.code == "request_too_large"
    with pytest.raises(RequestError) as error:
        await world.bind(ask("x", previous_response_id=turn.accepted.response_id))
    assert error.value.code == "previous_response_not_found"


async def test_long_texts_are_encoded_all_the_same(world, engine):
    engine.info = msgspec.structs.replace(engine.info, max_model_len=10**6, total_blocks=10**5)
    turn, finished = await world.turn(ask("x" * 20_000, instructions="y" * 20_000))
    assert await world.context(turn.accepted.session_id) == rendered(
        ("system", "y" * 20_000), ("user", "x" * 20_000), ("assistant", finished.text)
    )
