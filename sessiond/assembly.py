"""Builds a server from its settings. Starts nothing."""

import asyncio
import contextlib
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, TypeVar

from starlette.applications import Starlette

from engine.errors import ConfigError
from engine.ipc.client import EngineClient
from engine.text.chat_template import load_chat_format
from engine.text.tokenizer import load_tokenizer
from policies.registry import ContextPolicyRegistry, installed_context_policies
from policies.toolkit import ParameterError
from sessiond.accounts import Accounts
from sessiond.api.audit_watch import AuditWatch
from sessiond.api.auth import KeyAuth, NoAuth
from sessiond.api.connections import Connections
from sessiond.api.key_watch import KeyWatch
from sessiond.api.limits import GatewayLimits
from sessiond.api.parts import Gateway
from sessiond.api.protocol.policies import OVERSIZES, UNDER_PRESSURE
from sessiond.app import build_app, drain
from sessiond.domain import PolicyChoice
from sessiond.observability.metrics import Metrics
from sessiond.observability.span_export import spans_to
from sessiond.sessions.hooks import Hooks
from sessiond.sessions.layer import SessionLayer
from sessiond.sessions.limits import ServiceLimits
from sessiond.sessions.transcript import TextFormat
from sessiond.settings import Settings
from sessiond.store.store import Store

if TYPE_CHECKING:
    from sessiond.observability.spans import TurnSpans

Word = TypeVar("Word", bound=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The application and the resources closed after it. The caller owns the engine."""

    app: Starlette
    gateway: Gateway
    store: Store
    spans: "TurnSpans | None" = None

    async def drain(self) -> None:
        """Refuse new work, let running turns end, close the sockets."""
        await drain(self.gateway)

    async def close(self) -> None:
        """Send the last spans; close the database."""
        if self.spans is not None:
            await asyncio.to_thread(self.spans.close)
        await self.store.close()


def load_text_format(model: Path) -> TextFormat:
    """The chat format of the model at `model`. Blocks for some tenths of a second.

    Raises:
        ModelFileError: a model file is damaged or of an unknown format.
        TemplateError: its chat template can't be used.
    """
    return load_chat_format(model, load_tokenizer(model))


def build_server(
    settings: Settings, engine: EngineClient, text: TextFormat, *, port: int = 0
) -> Server:
    """Wire an application to an engine. The engine has started; `text` is that of its model.

    `port`: the port listened on; 0: that of the settings.

    Raises:
        ConfigError: the context policy is unknown, or traces can't be sent.
        PluginError: an installed policy can't be used.
        StoreConfigError: the database URL is invalid.
    """
    registry = installed_context_policies()
    store = Store(
        settings.db,
        replica_name=_replica_name(settings, port),
        connections=settings.db_connections,
        timeout_s=settings.db_timeout_s,
    )
    metrics = Metrics()
    spans = spans_to(settings.otlp_traces_endpoint) if settings.otlp_traces_endpoint else None
    sessions = SessionLayer(
        store=store,
        engine=engine,
        text=text,
        limits=_service_limits(settings),
        clock=time.time,
        ticks=time.monotonic,
        new_id=new_id,
        new_seed=lambda: secrets.randbits(63),  # SQL and msgspec have signed 64-bit integers
        hooks=Hooks(
            turn_ended=metrics.turn_ended,
            degraded=metrics.degraded,
            quota_refused=metrics.quota_refused,
            turn_reported=spans.turn_reported if spans else None,
        ),
        ignore_eos=settings.ignore_eos,
        default_policy=default_policy(settings, registry),
        make_policy=registry.make,
    )
    key_watch = KeyWatch(
        store.accounts.unusable if settings.auth == "keys" else None,
        at_work=sessions.followers.keys_at_work,
        on_revoked=sessions.followers.end_work_of_key,
    )
    gateway = Gateway(
        sessions=sessions,
        engine=engine,
        auth=KeyAuth(store.accounts) if settings.auth == "keys" else NoAuth(),
        limits=_gateway_limits(settings),
        connections=Connections(),
        metrics=metrics,
        clock=time.time,
        new_id=new_id,
        accounts=Accounts(
            store.accounts, clock=time.time, new_id=new_id, on_revoked=key_watch.revoke
        ),
        audit_watch=AuditWatch(engine),
        key_watch=key_watch,
    )
    app = build_app(
        gateway,
        allowed_hosts=(*settings.allowed_hosts, settings.host),
        allowed_origins=settings.allowed_origins,
        traced=spans is not None,
    )
    return Server(app=app, gateway=gateway, store=store, spans=spans)


def _replica_name(settings: Settings, port: int) -> str:
    if settings.replica != "auto":
        return settings.replica
    return f"{gethostname()}:{port or settings.port}"


def default_policy(settings: Settings, registry: ContextPolicyRegistry) -> PolicyChoice:
    """The default context policy of the server.

    Raises:
        ConfigError: the name is unknown, or a parameter is invalid.
    """
    text = settings.context_policy
    name, _, listed = text.partition(":")
    parameters: dict[str, int | float | str] = {}
    for part in filter(None, listed.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ConfigError("context_policy", text, "name:parameter=value,parameter=value")
        parameters[key.strip()] = _number_or_text(value.strip())
    oversize = _word(text, parameters, "oversize", OVERSIZES)
    under_pressure = _word(text, parameters, "under_pressure", UNDER_PRESSURE)
    try:
        registry.make(name.strip(), parameters)
    except ParameterError as error:
        allowed = f"a policy whose {error.name} is {error.allowed}"
        raise ConfigError("context_policy", text, allowed) from error
    return PolicyChoice(
        type=name.strip(),
        parameters=parameters,
        fidelity=settings.context_fidelity,
        oversize=oversize,
        under_pressure=under_pressure,
    )


def _word(
    text: str,
    parameters: dict[str, int | float | str],
    name: str,
    choices: tuple[Word, ...],
) -> Word:
    """Take one of the words out of the parameters; absent is the first."""
    value = parameters.pop(name, choices[0])
    for one in choices:
        if value == one:
            return one
    raise ConfigError("context_policy", text, f"a policy with {name} {' or '.join(choices)}")


def _number_or_text(value: str) -> int | float | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(value)
    return value


def new_id(prefix: str) -> str:
    """A unique, unguessable id: `resp_…`."""
    return f"{prefix}_{secrets.token_hex(16)}"


def _service_limits(settings: Settings) -> ServiceLimits:
    return ServiceLimits(
        default_max_output_tokens=settings.default_max_output_tokens,
        max_outstanding=settings.max_num_seqs + settings.max_queue,
        demand_warn_watermark=settings.demand_warn_watermark,
        demand_high_watermark=settings.demand_high_watermark,
        turn_timeout_s=settings.turn_timeout,
        queue_timeout_s=settings.queue_timeout,
        http_hold_s=settings.http_hold_s,
        session_ttl_s=settings.session_ttl,
        drain_timeout_s=settings.drain_timeout_s,
        heartbeat_s=settings.replica_heartbeat_s,
        idempotency_ttl_s=settings.idempotency_ttl_s,
        replay_events=settings.replay_events,
        replay_memory_bytes=settings.replay_memory,
        replay_ttl_s=settings.replay_ttl_s,
    )


def _gateway_limits(settings: Settings) -> GatewayLimits:
    return GatewayLimits(
        max_frame_bytes=settings.max_frame_bytes,
        max_body_bytes=settings.max_frame_bytes,
        ping_interval_s=settings.ping_interval_s,
        ping_timeout_s=settings.ping_timeout_s,
        heartbeat_s=settings.ping_interval_s,
    )
