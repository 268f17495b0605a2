"""Rows with the values that a test does not care about."""

from sessiond.domain import ItemView, TurnUsage
from sessiond.store.records import AbortedTurn, CommittedTurn, NewPrompt, NewSession, NewTurn


def prompt(prompt_id="sys_1", ids=(1, 2), text=None):
    return NewPrompt(id=prompt_id, text=text, opening_text=None, ids=ids)


def session(session_id="conv_1", user_id="ann", prompt_id="sys_1", tip_id=None, tokens=2):
    return NewSession(
        id=session_id,
        user_id=user_id,
        model="echo",
        vocab_size=256,
        prompt_id=prompt_id,
        tip_id=tip_id,
        context_tokens=tokens,
        created_at=1.0,
    )


def item(turn_id, session_id="conv_1", role="user", text="hi", number=0):
    return ItemView(
        id=f"msg_{turn_id}_{role}_{number}",
        session_id=session_id,
        response_id=turn_id,
        role=role,
        text=text,
        status="completed",
        created_at=1.0,
    )


def turn(
    turn_id="resp_1",
    parent_id=None,
    *,
    user_id="ann",
    session_id="conv_1",
    ids=(3, 4),
    start=2,
    epoch=1,
):
    return NewTurn(
        id=turn_id,
        user_id=user_id,
        session_id=session_id,
        parent_id=parent_id,
        prompt_id="sys_1",
        message_id=f"reply_{turn_id}",
        model="echo",
        generate=True,
        awaits_reply=False,
        request={},
        previous_response_id=None,
        seed=7,
        start_tokens=start,
        input_ids=ids,
        items=(item(turn_id, session_id),),
        created_at=2.0,
        epoch=epoch,
    )


def kept(
    turn_id="resp_1",
    parent_id=None,
    *,
    user_id="ann",
    session_id="conv_1",
    ids=(5,),
    tokens=5,
    epoch=1,
):
    return CommittedTurn(
        id=turn_id,
        user_id=user_id,
        session_id=session_id,
        parent_id=parent_id,
        prompt_id="sys_1",
        status="completed",
        reason=None,
        reply_ids=ids,
        reply=item(turn_id, session_id, "assistant", "yes"),
        context_tokens=tokens,
        usage=TurnUsage(new_tokens=2, output_tokens=1, ttft_ms=1.5),
        finished_at=3.0,
        epoch=epoch,
    )


def lost(turn_id="resp_1", user_id="ann"):
    return AbortedTurn(
        id=turn_id,
        user_id=user_id,
        status="cancelled",
        reason="cancelled",
        error=None,
        reply=None,
        usage=TurnUsage(),
        finished_at=3.0,
    )
