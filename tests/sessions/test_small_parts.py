"""Parts that are values or nearly so."""

import asyncio
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import TemplateError
from engine.ids import SessionId
from sessiond.domain import AttachmentId, TurnRequest
from sessiond.errors import RequestError
from sessiond.sessions.replica import Sweep
from sessiond.sessions.request_form import pack_request, unpack_request
from sessiond.sessions.retention import Attachments, KeepAliveDeadlines
from sessiond.sessions.transcript import Transcript
from tests.harness.service import ByteFormat, items, rendered

A, B = AttachmentId("a"), AttachmentId("b")
S, T = SessionId("s"), SessionId("t")


class TestAttachments:
    def test_a_session_is_held_until_the_last_socket_leaves(self):
        attachments = Attachments()
        for socket in (A, B):
            attachments.open(socket)
            attachments.join(socket, S)
        attachments.join(A, T)
        assert attachments.leave(A) == [T]
        assert attachments.is_held(S)
        assert attachments.leave(B) == [S]
        assert not attachments.is_held(S)

    def test_a_socket_that_has_left_holds_nothing(self):
        attachments = Attachments()
        attachments.open(A)
        attachments.leave(A)
        attachments.join(A, S)
        assert not attachments.is_held(S)
        assert attachments.leave(A) == []

    def test_a_session_that_is_no_more_is_nobodys(self):
        attachments = Attachments()
        attachments.open(A)
        attachments.join(A, S)
        attachments.forget(S)
        assert attachments.leave(A) == []


class TestKeepAliveDeadlines:
    def test_each_deadline_is_told_once_and_the_last_word_holds(self):
        deadlines = KeepAliveDeadlines()
        deadlines.keep_alive(S, 10)
        deadlines.keep_alive(T, 5)
        deadlines.keep_alive(S, 20)
        assert deadlines.take_due(4.9) == []
        assert deadlines.take_due(10) == [T]
        assert deadlines.take_due(10) == []
        deadlines.drop(S)
        assert deadlines.take_due(99) == []

    def test_deadlines_that_hold_no_more_are_not_kept_for_ever(self):
        deadlines = KeepAliveDeadlines()
        for number in range(10_000):
            deadlines.keep_alive(S, number)
            deadlines.keep_alive(T, number + 0.5)
        assert deadlines.noted_count < 100
        assert deadlines.take_due(9998.9) == []
        assert deadlines.take_due(9999.6) == [S, T]


class TestSweep:
    def test_each_round_has_what_there_was_at_its_beginning(self):
        table = [1, 2, 3, 4, 5]
        sweep = Sweep(lambda: table)
        assert sweep.next(2) == [1, 2]
        table.append(6)
        assert [sweep.next(2), sweep.next(2), sweep.next(9)] == [[3, 4], [5], table]

    def test_of_nothing_there_is_nothing(self):
        assert Sweep(list).next(3) == []


class TestRequestForm:
    def test_it_comes_back_but_for_what_has_columns(self):
        request = TurnRequest(
            model="m",
            input=items("x"),
            instructions="y",
            conversation="conv",
            generate=False,
            max_output_tokens=3,
            temperature=0.25,
            top_p=0.5,
            top_k=4,
            min_p=0.1,
            seed=9,
            stop=("a", "b"),
            truncation="disabled",
            deadline_ms=8,
            metadata={"k": "v"},
        )
        back = unpack_request(pack_request(request))
        default = TurnRequest()
        for field in fields(TurnRequest):
            elsewhere = field.name in {"input", "instructions", "conversation"}
            expected = default if elsewhere else request
            assert getattr(back, field.name) == getattr(expected, field.name), field.name

    def test_rows_of_an_older_version_have_defaults(self):
        assert unpack_request({"temperature": 0.5, "no_longer": 1}) == TurnRequest(temperature=0.5)


class TestTranscript:
    @given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text())))
    def test_a_delta_is_its_messages_in_a_row(self, parts):
        ids = asyncio.run(Transcript(ByteFormat()).delta(items(*parts), generate=False))
        assert list(ids) == rendered(*parts)

    def test_a_reply_has_no_stop_ids_only_when_end_of_turn_tokens_are_ignored(self):
        assert Transcript(ByteFormat()).stop_ids == list(ByteFormat().stop_ids)
        assert Transcript(ByteFormat(), ignore_eos=True).stop_ids == []

    async def test_what_the_template_refuses_is_the_callers_mistake(self):
        class Refusing(ByteFormat):
            def message(self, role, text):
                raise TemplateError("no such role")

        transcript = Transcript(Refusing())
        for work, param in (
            (transcript.delta(items("x"), generate=True), "input"),
            (transcript.system_prefix("x", None), "instructions"),
            (transcript.system_prefix(None, "x"), "input"),
        ):
            with pytest.raises(RequestError) as error:
                await work
            assert (error.value.code, error.value.param) == ("invalid_value", param)
