import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.ids import SessionId, TurnId
from engine.ipc.framing import (
    MAX_FRAME_BYTES,
    Ask,
    FrameError,
    Launch,
    OutputBatch,
    Progress,
    QueryDone,
    Ready,
    Refused,
    encode,
    read_from_worker,
    read_to_worker,
)
from engine.ipc.messages import (
    CancelTurn,
    CloseContext,
    ForkContext,
    RaisePriority,
    ReleaseContext,
    Sampling,
    SetContext,
    SubmitTurn,
    TruncateContext,
    TurnCounts,
    TurnDegraded,
    TurnDelta,
    TurnDone,
    TurnFailed,
    TurnIncomplete,
    TurnWaiting,
)
from engine.ipc.queries import ContextView, GetContext, GetResidency, GetStats, PageView
from tests.ipc.loops import INFO

S, T = SessionId("s"), TurnId("t")
TO_WORKER = [
    Launch(config=EngineConfig(model="m", kv_cache_memory=2**40)),
    SetContext(session=S, salt=b"\x00\xff", ids=[1, 2, 3]),
    ForkContext(session=S, parent=S, length=3),
    TruncateContext(session=S, length=1),
    ReleaseContext(session=S),
    RaisePriority(session=S),
    CloseContext(session=S),
    SubmitTurn(turn=T, session=S, ids=[5], sampling=Sampling(seed=2**63, stop=("a", "b"))),
    CancelTurn(turn=T, keep=True),
    Ask(number=1, query=GetStats()),
    Ask(number=2, query=GetContext(session=S)),
    Ask(number=3, query=GetResidency(sessions=("s",))),
]
PAGE = PageView(block=1, first=0, last=15, base=0, references=1, hashed=True)
VIEW = ContextView(
    session=S,
    known=True,
    running=False,
    tokens=16,
    kept_len=16,
    blocks=1,
    shared_blocks=0,
    kv_bytes=1,
    page_table=[PAGE],
)
FROM_WORKER = [
    Progress(text="loading"),
    Ready(info=INFO),
    Refused(kind="setting", message="no", setting="dtype", value="x", allowed="y"),
    OutputBatch(
        outputs=[
            TurnDelta(turn=T, text="é", tokens=1),
            TurnWaiting(turn=T, cause="blocks", position=2),
            TurnDegraded(turn=T, step="limit_running"),
            TurnDegraded(turn=T, step="preempt", reason="priority"),
            TurnDone(turn=T, text="é", kept_ids=[1], counts=TurnCounts(ttft_ms=1.5)),
            TurnIncomplete(
                turn=T,
                reason="cancelled",
                text="",
                kept_ids=[],
                rolled_back=True,
                counts=TurnCounts(),
            ),
            TurnFailed(turn=T, code="queue_full", message="full", counts=TurnCounts()),
            QueryDone(number=2, answer=VIEW),
        ]
    ),
]


@given(st.lists(st.integers(1, 60), max_size=200))
def test_any_cut_of_the_stream_gives_the_same_messages(cuts):
    for messages, reader in ((TO_WORKER, read_to_worker()), (FROM_WORKER, read_from_worker())):
        stream = b"".join(encode(message) for message in messages)
        seen, at = [], 0
        for size in cuts:
            seen += reader.feed(stream[at : at + size])
            at += size
        seen += reader.feed(stream[at:])
        assert seen == messages


def test_an_announced_length_over_the_limit_is_refused_before_it_is_read():
    with pytest.raises(FrameError, match="frame must be at most"):
        list(read_to_worker().feed(struct.pack(">I", MAX_FRAME_BYTES + 1)))


@pytest.mark.parametrize("body", [b"\xc1", b"\x80", b"\x81\xa4type\xa5Other"])
def test_a_frame_that_does_not_decode_is_an_error(body):
    with pytest.raises(FrameError, match="cannot be decoded"):
        list(read_to_worker().feed(struct.pack(">I", len(body)) + body))


def test_a_worker_may_not_say_what_only_the_gateway_says():
    with pytest.raises(FrameError):
        list(read_from_worker().feed(encode(TO_WORKER[0])))
