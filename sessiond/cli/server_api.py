"""A server's address, and a client of its HTTP API for the command line."""

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
    """The server is unreachable or refused a request; the message is for the user.

    `status` is that of the response, None if there was none.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server's scheme, host and port, without a path, and the API key for it."""

    http: str
    api_key: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str, api_key: str | None = None) -> "ServerAddress":
        """Parse `http(s)://host:port` or `ws(s)://...`, with or without `/v1` or `/v1/responses`.

        Raises:
            ValueError: names the URL and the allowed form.
        """
        refusal = f"url must be http://HOST:PORT or https://HOST:PORT (got {url!r})"
        try:
            parts = urllib.parse.urlsplit(url)
            _ = parts.port  # parsed on access only
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
        """Headers of every request."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    @property
    def is_loopback(self) -> bool:
        """Whether the address is this machine; then no proxy is used."""
        return urllib.parse.urlsplit(self.http).hostname in _LOOPBACK


def no_answer(address: ServerAddress, reason: object) -> ServerError:
    """Build the error for a missing server or a failed TLS handshake."""
    if isinstance(reason, ssl.SSLError):
        return ServerError(f"no trusted TLS connection to {address.http} ({reason})")
    return ServerError(f"no server answers at {address.http} ({reason})")


class ServerApi:
    """Client of one server's HTTP API. Blocking."""

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        proxies: dict[str, str] | None = {} if address.is_loopback else None
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))

    def model(self) -> str:
        """Return the served model's name."""
        models = self._call("GET", "/v1/models").get("data") or [{}]
        return str(models[0].get("id", "unknown"))

    def session(self, session_id: str) -> dict[str, Any]:
        """Return one session with its newest turns (`GET /v1/sessions/{id}`)."""
        return self._call("GET", _session_path(session_id))

    def whole_session(self, session_id: str) -> dict[str, Any]:
        """Return one session with all its turns, read page by page."""
        path = _session_path(session_id) + "?limit=100"
        found = page = self._call("GET", path)
        while page.get("turns_after"):
            after = urllib.parse.quote(str(page["turns_after"]), safe="")
            page = self._call("GET", f"{path}&after={after}")
            found["turns"] = [*page["turns"], *found["turns"]]
        return {**found, "turns_after": None} if "turns_after" in found else found

    def reset(self, session_id: str) -> dict[str, Any]:
        """Empty one session; its instructions stay."""
        return self._call("POST", _session_path(session_id) + "/reset")

    def fork(self, session_id: str) -> dict[str, Any]:
        """Fork a session at its current state."""
        return self._call("POST", _session_path(session_id) + "/fork")

    def set_policy(self, session_id: str, policy: Mapping[str, Any]) -> dict[str, Any]:
        """Set one session's context policy, effective from its next turn."""
        return self._call("PUT", _session_path(session_id) + "/policy", policy)

    def clear_policy(self, session_id: str) -> dict[str, Any]:
        """Revert one session to the policy of its user or the server."""
        return self._call("DELETE", _session_path(session_id) + "/policy")

    def sessions(
        self, *, state: str | None = None, user: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield open sessions, or those in a state, latest activity first, page by page.

        `user`: their owner, `*` for all users; None: the caller.
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
        """Return the `count` latest active open sessions; for an admin those of all users."""
        try:
            return list(itertools.islice(self.sessions(user="*"), count))
        except ServerError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
        return list(itertools.islice(self.sessions(), count))

    def park(self, session_id: str) -> dict[str, Any]:
        """Move an idle session's KV from the device to a lower tier."""
        return self._call("POST", _session_path(session_id) + "/park")

    def close(self, session_id: str) -> dict[str, Any]:
        """Close one session and free its memory."""
        return self._call("DELETE", _session_path(session_id))

    def quota(self, user: str) -> dict[str, Any]:
        """Return a user's limits and usage (`GET /admin/users/{id}/quota`)."""
        return self._call("GET", _quota_path(user))

    def set_quota(self, user: str, limits: Mapping[str, Any]) -> dict[str, Any]:
        """Change the given limits; None is no limit."""
        return self._call("PUT", _quota_path(user), limits)

    def memory(self) -> dict[str, Any]:
        """Return the leak audit (`GET /admin/memory`)."""
        return self._call("GET", "/admin/memory")

    def capacity(self) -> dict[str, Any]:
        """Return free memory and running turns (`GET /health/capacity`)."""
        return self._call("GET", "/health/capacity")

    def metrics(self) -> str:
        """Return a scrape in Prometheus' text format."""
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
            raise ServerError(f"the response of {url} must be a JSON object")
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
