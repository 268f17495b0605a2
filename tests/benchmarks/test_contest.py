"""Plays on contestants: what fails is told, and the rest goes on."""

import os
from contextlib import asynccontextmanager, contextmanager

from benchmarks.chat import ChatError
from benchmarks.contest import Contest
from benchmarks.contestants import Running
from benchmarks.schedule import RAW, Play
from benchmarks.turn_times import TurnTimes


class CountingChat:
    """Replies at once; its context grows by what is sent."""

    def __init__(self, log):
        self._log = log
        self._tokens = 0

    async def ask(self, text, reply_tokens):
        self._log.append(text)
        cached, self._tokens = self._tokens, self._tokens + len(text.split()) + reply_tokens
        return TurnTimes(
            sent_at_s=0.0,
            text_at_s=tuple(0.5 + 0.01 * i for i in range(reply_tokens)),
            input_tokens=self._tokens - reply_tokens,
            cached_tokens=cached,
            output_tokens=reply_tokens,
        )


class FakeServer:
    def __init__(self, fault=None):
        self.log = []
        self.served = []
        self._fault = fault

    @contextmanager
    def serve(self, workload):
        @asynccontextmanager
        async def open_chat():
            yield CountingChat(self.log)

        self.served.append(workload)
        if self._fault:
            raise self._fault
        yield Running(pid=os.getpid(), open_chat=open_chat)


def run(plays, tools=None, **servers):
    lines = []
    contest = Contest(servers, tools or {}, lambda line, runs: lines.append((line, len(runs))))
    runs = contest.run(plays)
    assert [count for _, count in lines] == list(range(1, len(plays) + 1))
    return runs, [line for line, _ in lines]


def test_all_servers_get_the_same_messages():
    ours, peer = FakeServer(), FakeServer()
    plays = [Play(0, "W2", "ours"), Play(0, "W2", "peer")]
    runs, lines = run(plays, ours=ours, peer=peer)
    assert ours.log
    assert sorted(ours.log) == sorted(peer.log)
    assert [run.fault for run in runs] == ["", ""]
    assert [line.split()[0] for line in lines] == ["[1/2]", "[2/2]"]
    assert runs[0].figures["ttft_later_ms"] == 500
    assert runs[0].memory_mb[0] > 1


def test_a_peer_that_fails_is_told_and_the_run_goes_on():
    plays = [Play(0, "W1", "broken"), Play(0, "W1", "ours")]
    runs, lines = run(plays, broken=FakeServer(ChatError("HTTP 500")), ours=FakeServer())
    assert runs[0].fault == "ChatError: HTTP 500"
    assert "FAILED" in lines[0]
    assert runs[1].figures


def test_a_chat_that_grows_brings_a_curve():
    (one,), _ = run([Play(0, "W4", "ours")], ours=FakeServer())
    assert len(one.growth) == 18
    assert one.growth[-1][0] > 6000
    assert set(one.figures) >= {"ttft_ms_at_400", "ttft_ms_at_4000", "ttft_ms_at_8000"}


def test_raw_rates_come_from_tools_where_there_are_some_and_else_through_the_door():
    ours = FakeServer()
    plays = [Play(0, RAW, "kernels"), Play(0, RAW, "ours")]
    runs, _ = run(plays, tools={"kernels": lambda: {"decode_8": 900.0}}, ours=ours)
    assert runs[0].figures == {"decode_8": 900.0}
    assert set(runs[1].figures) == {
        "prefill_512", "prefill_4096", "decode_1", "decode_8", "decode_32",
    }  # fmt: skip
