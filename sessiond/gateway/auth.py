"""Who asks. In this version everyone on loopback is the user `local`."""

from collections.abc import Sequence
from typing import Protocol

from sessiond.errors import RequestError
from sessiond.facts import Caller

KEY_SUBPROTOCOL = "openai-insecure-api-key."
SUBPROTOCOLS = ("responses", "realtime")

LOCAL = Caller(user_id="local", is_admin=True, salt=b"local")


class Authenticator(Protocol):
    """Turns a key into a caller."""

    def caller(self, key: str | None) -> Caller:
        """Tell who holds the key; None when none was shown.

        Raises:
            RequestError: `invalid_api_key`.
        """
        ...


class NoAuth:
    """`--auth none`: keys are taken and not looked at. For loopback only."""

    def caller(self, key: str | None) -> Caller:  # noqa: ARG002 -- the Protocol's
        """Everyone is the user `local`, with the admin role."""
        return LOCAL


def bearer_key(authorization: str | None) -> str | None:
    """Take the key out of an `Authorization` header (RFC 6750, section 2.1)."""
    if authorization is None:
        return None
    scheme, _, key = authorization.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


def choose_subprotocol(offered: Sequence[str]) -> str | None:
    """Choose the subprotocol to echo; None if none was offered.

    Browsers can't set headers, so they offer the key as a subprotocol beside the real one; only
    the real one is echoed, or the key would stand in the response.

    Raises:
        RequestError: `invalid_value`, none of those offered is spoken here.
    """
    if not offered:
        return None
    for name in offered:
        if name in SUBPROTOCOLS:
            return name
    allowed = " or ".join(SUBPROTOCOLS)
    message = f"none of the offered subprotocols is spoken here: allowed is {allowed}"
    raise RequestError("invalid_value", message, param="Sec-WebSocket-Protocol")


def subprotocol_key(offered: Sequence[str]) -> str | None:
    """Take the key out of the offered subprotocols."""
    for name in offered:
        if name.startswith(KEY_SUBPROTOCOL):
            return name[len(KEY_SUBPROTOCOL) :]
    return None
