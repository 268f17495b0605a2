"""Host allow-list and Origin check on HTTP and sockets, before any other code sees a request.

Probes and scrapers address a pod by its IP or a service name, or send no Host at all. Their paths
(`is_probe`) have no data of users and are exempt from the Host check, not from the Origin check.

A page of another site can send requests to a server on loopback (with DNS rebinding even under its
own name), so both are checked there, too. Pure ASGI: middleware that wraps `receive` would hide
disconnects.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from sessiond.api.refusal import refuse_connection
from sessiond.errors import RequestError

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host name in lower case, without brackets, and a port if one is written."""

    host: str
    port: int | None


def parse_host(value: str) -> HostPort | None:
    """Read a `Host` header (RFC 9110, section 7.2); None when it is not one."""
    if not value or any(char in value for char in "/?#@\\ ,"):
        return None
    try:
        parts = urlsplit(f"//{value}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    return HostPort(host.rstrip("."), port) if host else None


def is_same_origin(origin: str, host: HostPort) -> bool:
    """Return whether an `Origin` (RFC 6454) names the requested host.

    The scheme is not compared: behind a TLS proxy the page is https, the request http.
    """
    try:
        parts = urlsplit(origin)
        asked = HostPort((parts.hostname or "").rstrip("."), parts.port)
    except ValueError:
        return False
    default = _DEFAULT_PORTS.get(parts.scheme)
    if default is None or parts.path or parts.query or parts.fragment or parts.username:
        return False
    return asked.host == host.host and (asked.port or default) == (host.port or default)


def plain_origin(origin: str) -> str:
    """Normalise an origin as browsers do: lower case, without the scheme's default port."""
    lower = origin.lower()
    scheme = lower.partition(":")[0]
    return lower.removesuffix(f":{_DEFAULT_PORTS.get(scheme, '')}")


def is_probe(scope: Scope) -> bool:
    """Whether a request is exempt from the Host check: health, metrics, HAProxy's default check.

    That check is `OPTIONS /` without a Host, which no browser can send.
    """
    if scope["type"] != "http":
        return False
    path = scope["path"]
    if path in {"/health", "/metrics"} or path.startswith("/health/"):
        return True
    has_host = any(name.lower() == b"host" for name, _ in scope["headers"])
    return scope["method"] == "OPTIONS" and path == "/" and not has_host


class HostOriginCheck:
    """ASGI middleware: 403 unless the host is allowed, and the origin absent, the same or allowed.

    Probes may name any host, but one that is not allowed has no origin. Allowed origins are those
    of `plain_origin`.
    """

    def __init__(
        self, app: ASGIApp, *, allowed_hosts: Iterable[str], allowed_origins: Iterable[str] = ()
    ) -> None:
        self._app = app
        self._origins = frozenset(allowed_origins)
        self._allowed = LOOPBACK_HOSTS | {name.lower().strip("[]") for name in allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] in {"http", "websocket"}:
            try:
                self.check(scope["headers"], needs_host=not is_probe(scope))
            except RequestError as error:
                await refuse_connection(error, scope, receive, send)
                return
        await self._app(scope, receive, send)

    def check(self, headers: Iterable[tuple[bytes, bytes]], *, needs_host: bool = True) -> None:
        """Check the headers of a request; without `needs_host`, any Host or none will do.

        Raises:
            RequestError: `permission_denied`.
        """
        found = [(name.lower(), value.decode("latin-1")) for name, value in headers]
        hosts = [value for name, value in found if name == b"host"]
        host = self._allowed_host(hosts)
        if host is None and needs_host:
            shown = ", ".join(hosts)[:100] or "absent"
            message = f"Host must be a loopback name or one of --allowed-hosts (got {shown!a})"
            raise RequestError("permission_denied", message, param="Host")
        for name, value in found:
            if name == b"origin" and not self._is_allowed_origin(value, host):
                message = (
                    "Origin must be absent, this server's or one of --allowed-origins "
                    f"(got {value[:100]!a})"
                )
                raise RequestError("permission_denied", message, param="Origin")

    def _allowed_host(self, values: Sequence[str]) -> HostPort | None:
        host = parse_host(values[0]) if len(values) == 1 else None
        return host if host is not None and host.host in self._allowed else None

    def _is_allowed_origin(self, origin: str, host: HostPort | None) -> bool:
        if plain_origin(origin) in self._origins:
            return True
        return host is not None and is_same_origin(origin, host)
