"""Endpoints for operators and load balancers: health, capacity, models, metrics, leak audit."""

import asyncio
from dataclasses import asdict
from typing import cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from engine.ipc.messages import EngineInfo
from engine.ipc.queries import EngineStats, GetProcess, GetStats, TierInfo
from engine.system.process_memory import ProcessMemory, process_memory
from sessiond.api.parts import Gateway
from sessiond.api.protocol.resources import Json, model_object
from sessiond.api.refusal import json_response
from sessiond.errors import RequestError
from sessiond.observability.engine_metrics import session_states
from sessiond.observability.metrics import CONTENT_TYPE, Poll
from sessiond.sessions.queries import ask_in_time

FITS_TOKENS = (1024, 4096)
PROBE_METHODS = ("GET", "OPTIONS")  # HAProxy checks by OPTIONS by default


class HealthApi:
    """Answers from the engine's statistics, queried on each request."""

    def __init__(self, gateway: Gateway) -> None:
        sessions = gateway.sessions
        self._replica, self._demand = sessions.replica, sessions.demand
        self._housekeeping = sessions.housekeeping
        self._connections, self._metrics = gateway.connections, gateway.metrics
        self._audit_watch = gateway.audit_watch
        self._ask_timeout_s = gateway.limits.ask_timeout_s
        self._engine = gateway.engine
        self._started_at = gateway.clock()

    def routes(self) -> list[BaseRoute]:
        """List the routes."""
        return [
            Route("/", self.live, methods=["OPTIONS"]),
            Route("/health", self.ready, methods=PROBE_METHODS),
            Route("/health/live", self.live, methods=PROBE_METHODS),
            Route("/health/ready", self.ready, methods=PROBE_METHODS),
            Route("/health/capacity", self.capacity, methods=PROBE_METHODS),
            Route("/metrics", self.metrics, methods=PROBE_METHODS),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{model:path}", self.model, methods=["GET"]),
            Route("/admin/memory", self.memory, methods=["GET"]),
        ]

    async def live(self, request: Request) -> Response:  # noqa: ARG002 -- Starlette's signature
        """`GET /health/live`: 200 while the gateway runs."""
        return json_response({"status": "ok"})

    async def ready(self, request: Request) -> Response:  # noqa: ARG002 -- the same
        """`/health`, `/health/ready`: 200 if a turn would be accepted now, else 503 and why."""
        if self._connections.draining:
            return json_response({"status": "draining"}, 503)
        if not await self._engine_answers():
            return json_response({"status": "engine_unavailable"}, 503)
        if self._replica.database_failure is not None:  # the reason goes to the log only
            return json_response({"status": "database_unavailable"}, 503)
        return json_response({"status": "ok"})

    async def capacity(self, request: Request) -> Response:  # noqa: ARG002 -- the same
        """`GET /health/capacity`: free + cached + active = total."""
        accepting = (
            self._engine.available and not self._connections.draining and not self._demand.is_high
        )
        capacity = capacity_object(await self._stats(), self._engine.info, accepting)
        pressure = {
            "level": "high"
            if self._demand.is_high
            else "warning"
            if self._demand.is_warning
            else "none",
            "demand_tokens": self._demand.tokens,
            "demand_ratio": round(self._demand.ratio, 3),
        }
        return json_response({**capacity, "pressure": pressure})

    async def models(self, request: Request) -> Response:  # noqa: ARG002 -- the same
        """`GET /v1/models`."""
        return json_response({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/{model}`."""
        name, known = request.path_params["model"], self._engine.info.model
        if name != known:
            message = f"model must be {known} (got {name[:100]!a})"
            raise RequestError("model_not_found", message, param="model")
        return json_response(self._model())

    async def memory(self, request: Request) -> Response:  # noqa: ARG002 -- the same
        """`GET /admin/memory`: the leak audit, for admins."""
        report, stats = await self._audit_watch.audit(), await self._stats()
        engine = await self._process()
        return json_response(
            {
                "ok": report.ok,
                "violations": report.violations,
                "total_blocks": report.total_blocks,
                "free_blocks": report.free_blocks,
                "cached_blocks": report.cached_blocks,
                "active_blocks": report.active_blocks,
                "leaked_blocks": report.leaked_blocks,
                "device_bytes": report.device_bytes,
                "host_bytes": report.host_bytes,
                "disk_bytes": report.disk_bytes,
                "rss_bytes": report.rss_bytes,
                "arithmetic": self._engine.info.arithmetic,
                "attention_reason": self._engine.info.attention_reason,
                "model": self._engine.info.model,
                "tiers": [_tier_object(tier) for tier in self._engine.info.tiers],
                "engine": _process_object(engine)
                | {"weights_bytes": self._engine.info.weights_bytes},
                "gateway": _process_object(process_memory()) | self._load(),
                "sessions": session_counts(stats),
            }
        )

    async def metrics(self, request: Request) -> Response:  # noqa: ARG002 -- the same
        """`GET /metrics`: without a key, for scrapers. An unavailable engine leaves a gap."""
        info: EngineInfo | None = None
        stats: EngineStats | None = None
        if self._engine.available:
            try:
                info, stats = self._engine.info, await self._stats()
            except RequestError:
                stats = None
        poll = Poll(
            info=info,
            stats=stats,
            restarts=self._engine.restarts,
            hangs=self._engine.hangs,
            sockets=self._connections.open_count,
            has_database=self._replica.database_failure is None,
            started_at=self._started_at,
            demand=self._demand.ratio,
            warnings=self._demand.warnings,
            leaked_blocks=max(
                self._audit_watch.leaked_blocks, stats.leaked_references if stats else 0
            ),
        )
        return Response(self._metrics.render(poll), media_type=CONTENT_TYPE)

    def _load(self) -> Json:
        """Counts of the objects that the gateway keeps."""
        return {
            "sockets": self._connections.open_count,
            "tasks": len(asyncio.all_tasks()),
            **asdict(self._housekeeping.service_stats()),
        }

    def _model(self) -> Json:
        return model_object(self._engine.info.model, self._started_at)

    async def _engine_answers(self) -> bool:
        """Whether the engine answers: one that hangs in a step is alive but accepts no turn."""
        if not self._engine.available:
            return False
        try:
            await self._stats()
        except RequestError:
            return False
        return True

    async def _process(self) -> ProcessMemory:
        timeout_s = self._ask_timeout_s
        return cast("ProcessMemory", await ask_in_time(self._engine, GetProcess(), timeout_s))

    async def _stats(self) -> EngineStats:
        timeout_s = self._ask_timeout_s
        return cast("EngineStats", await ask_in_time(self._engine, GetStats(), timeout_s))


def _tier_blocks(stats: EngineStats, name: str) -> int:
    return stats.tiers[name].blocks if name in stats.tiers else 0


def _tier_object(tier: TierInfo) -> Json:
    """Build a configured tier; `reason` says why it is unavailable."""
    if tier.reason:
        return {"name": tier.name, "bytes": tier.bytes, "reason": tier.reason}
    return {
        "name": tier.name,
        "bytes": tier.bytes,
        "blocks": tier.blocks,
        "path": tier.path,
        "read_bytes_per_s": round(tier.read_rate),
        "write_bytes_per_s": round(tier.write_rate),
    }


def session_counts(stats: EngineStats) -> Json:
    """Count the engine's sessions: all, idle and parked."""
    states = session_states(stats)
    return {"live": stats.contexts, "idle": states["idle"], "parked": states["parked"]}


def _process_object(memory: ProcessMemory) -> Json:
    return msgspec.structs.asdict(memory)


def capacity_object(stats: EngineStats, info: EngineInfo, accepting: bool) -> Json:
    """Build the capacity: `fits` counts the further sessions that fit, by their length in tokens.

    `memory` is the basis of the pool's size: the bytes free after the weights were loaded.
    """
    usable = stats.free_blocks + stats.cached_blocks
    return {
        "accepting": accepting,
        "block_size": info.block_size,
        "kv_bytes_per_token": info.kv_bytes_per_token,
        "total_blocks": stats.total_blocks,
        "free_blocks": stats.free_blocks,
        "cached_blocks": stats.cached_blocks,
        "active_blocks": stats.active_blocks,
        "host_blocks": _tier_blocks(stats, "host"),
        "disk_blocks": _tier_blocks(stats, "disk"),
        "running": stats.running,
        "waiting": stats.waiting,
        "max_num_seqs": info.max_num_seqs,
        "sessions": session_counts(stats),
        "memory": {
            "free_bytes": info.free_bytes,
            "weights_bytes": info.weights_bytes,
            "activation_bytes": info.activation_bytes,
            "pool_bytes": info.pool_bytes,
        },
        "fits": {str(tokens): usable // -(-tokens // info.block_size) for tokens in FITS_TOKENS},
    }
