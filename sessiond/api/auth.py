"""Authentication: every caller is the user `local` (loopback only), or presents a key."""

import logging
from collections.abc import Sequence
from typing import Protocol

from sessiond.api_keys import hash_secret, is_secret, new_api_key, read_api_key
from sessiond.domain import Caller
from sessiond.errors import RequestError
from sessiond.store.accounts import AccountStore
from sessiond.store.errors import StoreError

KEY_SUBPROTOCOL = "openai-insecure-api-key."
SUBPROTOCOLS = ("responses", "realtime")

LOCAL = Caller(user_id="local", is_admin=True, salt=b"local")

logger = logging.getLogger(__name__)


class Authenticator(Protocol):
    """Turns a key into a caller."""

    async def caller(self, key: str | None) -> Caller:
        """Return the holder of the key; `key` is None when none was presented.

        Raises:
            RequestError: `invalid_api_key`.
        """
        ...


class NoAuth:
    """`--auth none`: keys are accepted and ignored. For loopback only."""

    async def caller(self, key: str | None) -> Caller:  # noqa: ARG002 -- the Protocol's
        """Return the user `local`, who has the admin role."""
        return LOCAL


class KeyAuth:
    """`--auth keys`: a caller is the holder of a key that is not revoked.

    Nothing is cached: each request queries the database (one look-up by primary key), so that a key
    revoked by this server or another is refused from the next request on.
    """

    def __init__(self, accounts: AccountStore) -> None:
        self._accounts = accounts
        self._dummy = hash_secret(new_api_key().secret)  # of no key, for constant work

    async def caller(self, key: str | None) -> Caller:
        """Return the holder of the key. An unknown id costs as much work as a wrong secret.

        Raises:
            RequestError: `invalid_api_key`; `internal_error`, the database failed.
        """
        if key is None:
            message = "an API key is required: Authorization: Bearer sk-..."
            raise RequestError("invalid_api_key", message)
        shown = read_api_key(key)
        if shown is None:
            raise RequestError("invalid_api_key", "the API key must have the form sk-ID.SECRET")
        try:
            owner = await self._accounts.key_owner(shown.id)
        except StoreError as error:
            logger.error("an API key cannot be verified: %s", error)  # noqa: TRY400 -- no trace helps
            raise RequestError("internal_error", "the API key cannot be verified now") from error
        is_right = is_secret(shown.secret, owner.secret if owner else self._dummy)
        if owner is None or not is_right:
            raise unknown_key()
        return Caller(
            user_id=owner.user_id,
            is_admin=owner.role == "admin",
            salt=owner.salt,
            key_id=shown.id,
        )


def unknown_key() -> RequestError:
    """Build the one error for wrong, unknown and revoked keys."""
    return RequestError("invalid_api_key", "the API key is unknown")


def bearer_key(authorization: str | None) -> str | None:
    """Extract the key from an `Authorization` header (RFC 6750, section 2.1)."""
    if authorization is None:
        return None
    scheme, _, key = authorization.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


def choose_subprotocol(offered: Sequence[str]) -> str | None:
    """Choose the subprotocol to echo; None if none was offered.

    Browsers can't set headers, so they offer the key as a subprotocol beside the real one. Only
    the real one is echoed: the key must not appear in the response.

    Raises:
        RequestError: `invalid_value`, none of the offered subprotocols is supported.
    """
    if not offered:
        return None
    for name in offered:
        if name in SUBPROTOCOLS:
            return name
    allowed = " or ".join(SUBPROTOCOLS)
    message = f"the subprotocol must be {allowed} (none of the offered ones is supported)"
    raise RequestError("invalid_value", message, param="Sec-WebSocket-Protocol")


def subprotocol_key(offered: Sequence[str]) -> str | None:
    """Extract the key from the offered subprotocols."""
    for name in offered:
        if name.startswith(KEY_SUBPROTOCOL):
            return name[len(KEY_SUBPROTOCOL) :]
    return None
