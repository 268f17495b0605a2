"""A service whose turns follow a script, and an engine that only answers questions.

They stand in for what lies behind the gateway where a test needs a moment that the real parts
pass through too quickly, or a fault that they have not.
"""

import asyncio
import itertools
from dataclasses import dataclass, field

from engine.errors import EngineUnavailableError
from engine.ipc.queries import AuditReport, EngineStats, GetAudit, GetProcess, GetStats, TierStats
from engine.system.histogram import MOVE_SECONDS, Buckets
from engine.system.process_memory import ProcessMemory
from sessiond.domain import (
    ServiceStats,
    TextDelta,
    TurnAccepted,
    TurnBegun,
    TurnFinished,
    TurnUsage,
)
from sessiond.errors import RequestError
from sessiond.sessions.demand import DrainRate, PoolDemand
from sessiond.sessions.limits import ServiceLimits
from tests.fakes.fake_clock import FakeClock
from tests.harness.loop import info_of

USAGE = TurnUsage(new_tokens=5, output_tokens=2, ttft_ms=1.0, total_ms=2.0)
INFO = info_of(
    architecture="fake",
    attention="fake",
    attention_reason="",
    max_model_len=4096,
    total_blocks=100,
    kv_bytes_per_token=64,
    pool_bytes=102400,
    pool_reason="said so",
    weights_bytes=1,
    activation_bytes=2,
    free_bytes=3,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    max_num_waiting=16,
    fingerprint="f",
)
STATS = EngineStats(
    total_blocks=100,
    free_blocks=70,
    cached_blocks=20,
    active_blocks=10,
    running=1,
    waiting=2,
    contexts=3,
    kept_tokens=120,
    idle=2,
    running_blocks=4,
    running_tokens=50,
    step_times=Buckets(bounds=(0.1, 1.0), counts=(8, 1, 0), total=0.5),
    token_times=Buckets(bounds=(0.01, 0.1), counts=(30, 8, 1), total=0.75),
    generated_tokens_total=40,
    reused_tokens_total=100,
    recomputed_tokens_total=4,
    new_tokens_total=60,
    prefix_queries_total=160,
    prefix_hits_total=100,
    preemptions_total=1,
    placement_policy="lru",
    evictions_total={"drop": 2},
    accepted_drafts_total=5,
    rejected_drafts_total=3,
    reclaim_times={"finished": Buckets(bounds=(0.001,), counts=(1, 2), total=0.25)},
)
TIER = TierStats(
    blocks=30,
    capacity_blocks=50,
    bytes=30 * 4096,
    stored_bytes_total=40960,
    fetched_bytes_total=8192,
    store_times=Buckets(bounds=MOVE_SECONDS, counts=(3, 1, *[0] * 13), total=0.5),
    fetch_times=Buckets(bounds=MOVE_SECONDS, counts=(2, 0, *[0] * 13), total=0.25),
    refused_blocks_total=1,
)
AUDIT = AuditReport(
    ok=True,
    violations=[],
    total_blocks=100,
    free_blocks=70,
    cached_blocks=20,
    active_blocks=10,
    leaked_blocks=0,
    device_bytes=102400,
    rss_bytes=5,
)
PROCESS = ProcessMemory(
    pid=1,
    rss_bytes=5,
    peak_rss_bytes=6,
    anonymous_bytes=4,
    mapped_files_bytes=1,
    heap_used_bytes=2,
    heap_free_bytes=1,
    kv_committed_bytes=1,
    device_live_bytes=0,
    device_reserved_bytes=0,
    files=3,
    files_limit=1024,
    threads=2,
)


def reply(*deltas, status="completed", **changes):
    """A script: the turn begins, says the deltas, ends."""
    text = "".join(deltas)
    ending = TurnFinished(status=status, text=text, usage=USAGE, **changes)
    return [TurnBegun(), *(TextDelta(text=delta) for delta in deltas), ending]


class ScriptedEngine:
    """Answers with set numbers; `available` may be set."""

    def __init__(self):
        self.available = True
        self.epoch = 1
        self.restarts = 0
        self.hangs = 0
        self.info = INFO
        self.stats = STATS
        self.audit = AUDIT

    async def ask(self, query):
        if not self.available:
            raise EngineUnavailableError
        answers = {GetStats: self.stats, GetAudit: self.audit, GetProcess: PROCESS}
        return answers[type(query)]


@dataclass
class ScriptedBound:
    session_id: str
    response_id: str
    request: object
    lane: str | None
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    keep: bool = True


class ScriptedTurn:
    """Plays facts; an `asyncio.Event` among them is waited for. Cancelling ends it."""

    def __init__(self, accepted, script, bound):
        self.accepted = accepted
        self.headers = {}
        self._script = script
        self._bound = bound
        self.reasons = []

    async def entries(self):
        said = []
        for step in self._script:
            if isinstance(step, asyncio.Event):
                if await self._cancelled_while(step):
                    break
                continue
            if isinstance(step, Exception):
                raise step
            if isinstance(step, TextDelta):
                said.append(step.text)
            if self._bound.cancelled.is_set() and not isinstance(step, TurnFinished):
                break
            yield step
            if isinstance(step, TurnFinished):
                return
        text = "".join(said) if self._bound.keep else ""
        yield TurnFinished(status="incomplete", text=text, usage=USAGE, reason="cancelled")

    async def _cancelled_while(self, event):
        waiters = [asyncio.ensure_future(one.wait()) for one in (event, self._bound.cancelled)]
        try:
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()
        return self._bound.cancelled.is_set()

    def cancel(self, keep, reason="cancelled"):
        self.reasons.append(reason)
        self._bound.keep = keep
        self._bound.cancelled.set()


class ScriptedQuotas:
    """Nobody has a limit."""

    async def headers(self, user_id):
        return {}


class ScriptedService:
    """Takes turns and plays `script(request)` for each; remembers what was asked of it.

    It is all collaborators of the session layer in one.
    """

    def __init__(self, script):
        self._script = script
        self._ids = itertools.count(1)
        self.ran = []
        self.turns = self.followers = self.housekeeping = self.replica = self
        self.conversations = self.openings = self.inspector = self.settings = self.policies = self
        self.attached = set()
        self.detached = asyncio.Queue()
        self.left = []
        self.dropped = []
        self.bound = []
        self.closed_sessions = []
        self.drain_began = asyncio.Event()
        self.bind_error = None
        self.quotas = ScriptedQuotas()
        self.database_failure = None
        self.ticks = FakeClock()
        self.drain_rate = DrainRate(self.ticks)
        self.demand = PoolDemand(ServiceLimits(), self.drain_rate)

    def end_turn_every(self, seconds):
        """As if the last turns had ended so long after one another."""
        for _ in range(32):  # as many are remembered
            self.drain_rate.ended()
            self.ticks.advance(seconds)

    async def start(self):
        pass

    async def stop(self):
        pass

    async def drain(self):
        self.drain_began.set()

    async def bind(self, caller, request, *, attachment, lane):
        if self.drain_began.is_set():
            raise RequestError("draining", "going down")
        if self.bind_error is not None:
            raise self.bind_error
        number = next(self._ids)
        session = request.conversation or f"conv_{number}"
        bound = ScriptedBound(session, f"resp_{number}", request, lane)
        self.bound.append(bound)
        return bound

    async def bind_chat(self, caller, request):
        return await self.bind(caller, request, attachment=None, lane=None)

    async def run(self, bound):
        script = self._script(bound.request)
        if isinstance(script, Exception):
            raise script
        accepted = TurnAccepted(
            response_id=bound.response_id,
            session_id=bound.session_id,
            message_id=bound.response_id.replace("resp", "msg"),
            previous_response_id=bound.request.previous_response_id,
            model="fake",
            instructions=None,
            created_at=1.0,
            request=bound.request,
        )
        turn = ScriptedTurn(accepted, script, bound)
        self.ran.append(turn)
        return turn

    async def drop(self, bound):
        self.dropped.append(bound.response_id)

    async def cancel(self, caller, response_id, *, attachment, keep):
        known = [one for one in self.bound if response_id in (None, one.response_id)]
        if not known:
            raise RequestError("previous_response_not_found", "no such response")
        for bound in known:
            bound.keep = keep
            bound.cancelled.set()

    def service_stats(self):
        return ServiceStats(
            sessions_in_memory=3,
            cold=1,
            max_cold=10,
            turns=len(self.ran),
            replays=0,
            replay_bytes=0,
            max_replay_bytes=100,
            session_ttl_s=0.0,
        )

    def attach(self, attachment):
        self.attached.add(attachment)

    def leave(self, attachment):
        self.left.append(attachment)

    async def detach(self, attachment):
        self.attached.discard(attachment)
        for bound in self.bound:
            bound.cancelled.set()
        self.detached.put_nowait(attachment)

    async def close(self, caller, session_id):
        self.closed_sessions.append(session_id)
