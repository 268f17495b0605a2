"""Collaborators shared by the gateway's endpoints."""

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.ipc.client import EngineClient
from sessiond.accounts import Accounts
from sessiond.api.audit_watch import AuditWatch
from sessiond.api.auth import Authenticator
from sessiond.api.connections import Connections
from sessiond.api.key_watch import KeyWatch
from sessiond.api.limits import GatewayLimits
from sessiond.observability.metrics import Metrics
from sessiond.sessions.layer import SessionLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The shared collaborators. `clock` returns Unix seconds, `new_id("sock")` returns `sock_…`.

    `accounts` is None if there are no users to administer.
    """

    sessions: SessionLayer
    engine: EngineClient
    auth: Authenticator
    limits: GatewayLimits
    connections: Connections
    metrics: Metrics
    clock: Callable[[], float]
    new_id: Callable[[str], str]
    audit_watch: AuditWatch
    accounts: Accounts | None = None
    key_watch: KeyWatch = field(default_factory=KeyWatch)
