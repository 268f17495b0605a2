"""A server's address, and the HTTP side of it as a client of the command line asks it."""

import http.client
import itertools
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_TIMEOUT_S = 10.0


class ServerError(Exception):
    """The server can't be reached, or said no; the message is for the user.

    `status` is that of its answer, None if there was no answer.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server is: scheme, host and port, no path; and the key that lets in there."""

    http: str
    api_key: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str, api_key: str | None = None) -> "ServerAddress":
        """Read `http(s)://host:port`, `ws(s)://...` too, with or without `/v1` or `/v1/responses`.

        Raises:
            ValueError: names the URL and what is allowed.
        """
        refusal = f"url={url!r}: allowed is http://HOST:PORT or https://HOST:PORT"
        try:
            parts = urllib.parse.urlsplit(url)
            _ = parts.port  # read only when it is asked for
        except ValueError as error:  # a port beyond 65535, half an IPv6 address
            raise ValueError(f"{refusal} ({error})") from error
        scheme = {"http": "http", "ws": "http", "https": "https", "wss": "https"}.get(parts.scheme)
        if scheme is None or not parts.hostname:
            raise ValueError(refusal)
        return cls(f"{scheme}://{parts.netloc}", api_key)

    @property
    def socket(self) -> str:
        """The URL of the conversation socket."""
        return "ws" + self.http.removeprefix("http") + "/v1/responses"

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine, so that no proxy may come between."""
        return urllib.parse.urlsplit(self.http).hostname in _LOOPBACK


def no_answer(address: ServerAddress, reason: object) -> ServerError:
    """Nobody is there, or somebody with whom no TLS can be spoken."""
    if isinstance(reason, ssl.SSLError):
        return ServerError(f"no TLS is spoken at {address.http}, or none to be trusted ({reason})")
    return ServerError(f"no server answers at {address.http} ({reason})")


class ServerApi:
    """Asks one server over HTTP. Blocking."""

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        proxies: dict[str, str] | None = {} if address.is_loopback else None
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))

    def model(self) -> str:
        """Name of the model that is served."""
        models = self._call("GET", "/v1/models").get("data") or [{}]
        return str(models[0].get("id", "unknown"))

    def session(self, session_id: str) -> dict[str, Any]:
        """What the server says of one session (`GET /v1/sessions/{id}`)."""
        return self._call("GET", _session_path(session_id))

    def reset(self, session_id: str) -> dict[str, Any]:
        """Empty one session; its instructions stay."""
        return self._call("POST", _session_path(session_id) + "/reset")

    def fork(self, session_id: str) -> dict[str, Any]:
        """Open a session that goes on where this one stands."""
        return self._call("POST", _session_path(session_id) + "/fork")

    def set_policy(self, session_id: str, policy: Mapping[str, Any]) -> dict[str, Any]:
        """Give one session a context policy; it holds from its next turn on."""
        return self._call("PUT", _session_path(session_id) + "/policy", policy)

    def clear_policy(self, session_id: str) -> dict[str, Any]:
        """Let the policy of its user, or the server, hold for one session."""
        return self._call("DELETE", _session_path(session_id) + "/policy")

    def sessions(
        self, *, state: str | None = None, user: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """Every open session, or those in a state, latest activity first, page by page.

        `user`: whose, `*` everybody's; None: the caller's.
        """
        wanted = {"limit": "100", "state": state, "user": user}
        query = urllib.parse.urlencode({k: v for k, v in wanted.items() if v is not None})
        after = ""
        while True:
            page = self._call("GET", f"/v1/sessions?{query}{after}")
            yield from page.get("data", [])
            if not page.get("has_more"):
                return
            after = f"&after={urllib.parse.quote(str(page['last_id']), safe='')}"

    def latest_sessions(self, count: int) -> list[dict[str, Any]]:
        """The open sessions that were active last, at most `count`: an admin's are everybody's."""
        try:
            return list(itertools.islice(self.sessions(user="*"), count))
        except ServerError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
        return list(itertools.islice(self.sessions(), count))

    def park(self, session_id: str) -> dict[str, Any]:
        """Move the KV of an idle session to a tier below the device."""
        return self._call("POST", _session_path(session_id) + "/park")

    def close(self, session_id: str) -> dict[str, Any]:
        """End one session and give back all that it holds."""
        return self._call("DELETE", _session_path(session_id))

    def quota(self, user: str) -> dict[str, Any]:
        """A user's limits and what it has taken (`GET /admin/users/{id}/quota`)."""
        return self._call("GET", _quota_path(user))

    def set_quota(self, user: str, limits: Mapping[str, Any]) -> dict[str, Any]:
        """Change the limits that are named; None is no limit."""
        return self._call("PUT", _quota_path(user), limits)

    def memory(self) -> dict[str, Any]:
        """The leak audit (`GET /admin/memory`)."""
        return self._call("GET", "/admin/memory")

    def capacity(self) -> dict[str, Any]:
        """What is free and what runs (`GET /health/capacity`)."""
        return self._call("GET", "/health/capacity")

    def metrics(self) -> str:
        """A scrape in Prometheus' text format."""
        return self._answer("GET", "/metrics").decode(errors="replace")

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        try:
            found = json.loads(self._answer(method, path, body))
        except ValueError as error:
            raise no_answer(self._address, error) from error
        if not isinstance(found, dict):
            url = self._address.http + path
            raise ServerError(f"{url} answered with something that is no JSON object")
        return found

    def _answer(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        url = self._address.http + path
        request = urllib.request.Request(  # noqa: S310 -- http(s) by `parse`
            url,
            data=None if body is None else json.dumps(body).encode(),
            headers=self._address.headers
            | ({} if body is None else {"Content-Type": "application/json"}),
            method=method,
        )
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                raise ServerError(_refusal(error.code, error.read()), error.code) from error
        except (OSError, http.client.HTTPException) as error:
            raise no_answer(self._address, getattr(error, "reason", error)) from error


def _session_path(session_id: str) -> str:
    return "/v1/sessions/" + urllib.parse.quote(session_id, safe="")


def _quota_path(user: str) -> str:
    return f"/admin/users/{urllib.parse.quote(user, safe='')}/quota"


def _refusal(status: int, body: bytes) -> str:
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = body[:200].decode(errors="replace").strip() or "no reason given"
    return f"the server answered {status}: {message}"
