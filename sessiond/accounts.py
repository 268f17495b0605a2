"""Administration of users and keys. Every change is audited; revocations are reported."""

import re
from collections.abc import Callable, Iterable
from typing import Any, get_args

from sessiond.api_keys import hash_secret, new_api_key
from sessiond.errors import RequestError
from sessiond.store.account_records import (
    Audit,
    AuditRecord,
    Issued,
    KeyRecord,
    NewKey,
    NewUser,
    SessionOwner,
    UserRecord,
    UserRole,
)
from sessiond.store.accounts import AccountStore
from sessiond.store.user_salt import new_salt

ROLES: tuple[UserRole, ...] = get_args(UserRole)

NAME_PATTERN = "[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}"
RESERVED_NAME = "local"  # the user of `--auth none`
RESERVED_START = "user_"  # prefix of user ids
_ALLOWED_NAME = "up to 64 of A-Z a-z 0-9 . _ @ + -, starting with a letter or digit"


class Accounts:
    """Operations on users and keys. `actor` is the admin who makes the change.

    `on_revoked` gets the ids of keys that were just revoked. `clock` returns unix seconds;
    `new_id("user")` returns a unique `user_…`.

    Raises:
        RequestError: from every method: `not_found`, or `invalid_value` with the parameter.
        StoreError: from every method, when the database fails.
    """

    def __init__(
        self,
        store: AccountStore,
        *,
        clock: Callable[[], float],
        new_id: Callable[[str], str],
        on_revoked: Callable[[Iterable[str]], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._new_id = new_id
        self._on_revoked = on_revoked

    # --- users -----------------------------------------------------------------------------------

    async def add_user(
        self, actor: str, name: str, role: UserRole, *, with_key: bool
    ) -> tuple[UserRecord, Issued | None]:
        """Add a user, optionally with a first key."""
        _check_name(name)
        now = self._clock()
        user = NewUser(
            id=self._new_id("user"), name=name, role=role, salt=new_salt(), created_at=now
        )
        audits = [self._audit(actor, "user.add", user.id, name=name, role=role)]
        issued, new_key = _issue(user.id, now) if with_key else (None, None)
        if issued is not None:
            audits.append(self._audit(actor, "key.add", user.id, key=issued.key.id))
        if not await self._store.add_user(user, new_key, audits):
            message = f"name must be unused (got {name!r}, which another user has)"
            raise RequestError("invalid_value", message, param="name")
        record = UserRecord(id=user.id, name=name, role=role, created_at=now, revoked_at=None)
        return record, issued

    async def user(self, user_id: str) -> UserRecord:
        """One user, removed ones included."""
        found = await self._store.find_user(user_id)
        if found is None:
            raise _no_user(user_id)
        return found

    async def named(self, name_or_id: str) -> UserRecord:
        """A user by its current name, or by its id."""
        found = await self._store.find_named(name_or_id)
        return found or await self.user(name_or_id)

    async def users(self, *, limit: int, after: str | None) -> tuple[tuple[UserRecord, ...], bool]:
        """Users in order of creation, and whether more follow."""
        return await self._store.list_users(limit=limit, after=after)

    async def session_owner(self, session_id: str) -> SessionOwner | None:
        """The owner of a stored session, closed ones included; None when the id is unknown."""
        return await self._store.session_owner(session_id)

    async def set_role(self, actor: str, user_id: str, role: UserRole) -> UserRecord:
        """Replace a user's role, from its next request on."""
        audit = self._audit(actor, "user.role", user_id, role=role)
        if not await self._store.set_role(user_id, role, audit):
            raise _no_user(user_id)
        return await self.user(user_id)

    async def remove_user(self, actor: str, user_id: str) -> None:
        """Remove a user and revoke its keys. Its conversations stay in the database."""
        revoked = await self._store.remove_user(user_id, self._audit(actor, "user.remove", user_id))
        if revoked is None:
            raise _no_user(user_id)
        self._on_revoked(revoked)

    # --- keys ------------------------------------------------------------------------------------

    async def add_key(self, actor: str, user_id: str) -> Issued:
        """Add a key to a user."""
        issued, new_key = _issue(user_id, self._clock())
        audit = self._audit(actor, "key.add", user_id, key=issued.key.id)
        if not await self._store.add_key(new_key, audit):
            raise _no_user(user_id)
        return issued

    async def keys(self, user_id: str) -> tuple[KeyRecord, ...]:
        """A user's keys, revoked ones included, oldest first."""
        await self.user(user_id)
        return await self._store.list_keys(user_id)

    async def key(self, key_id: str) -> KeyRecord:
        """One key, revoked ones included."""
        found = await self._store.find_key(key_id)
        if found is None:
            raise _no_key(key_id)
        return found

    async def revoke_key(self, actor: str, user_id: str, key_id: str) -> None:
        """Revoke a key at once; its sockets are closed."""
        audit = self._audit(actor, "key.revoke", user_id, key=key_id)
        if not await self._store.revoke_key(user_id, key_id, audit):
            raise _no_key(key_id)
        self._on_revoked([key_id])

    async def rotate_key(self, actor: str, user_id: str, key_id: str) -> Issued:
        """Revoke a key at once and issue a replacement."""
        issued, new_key = _issue(user_id, self._clock())
        audit = self._audit(actor, "key.rotate", user_id, key=key_id, new_key=issued.key.id)
        if not await self._store.rotate_key(key_id, new_key, audit):
            raise _no_key(key_id)
        self._on_revoked([key_id])
        return issued

    # --- the audit log ---------------------------------------------------------------------------

    async def write_down(self, actor: str, action: str, subject: str | None, **detail: Any) -> None:
        """Audit an admin action that changes no row of users or keys."""
        await self._store.add_audit(self._audit(actor, action, subject, **detail))

    async def audits(
        self, *, limit: int, before: int | None
    ) -> tuple[tuple[AuditRecord, ...], bool]:
        """The audit log, newest first, and whether older rows follow."""
        return await self._store.list_audits(limit=limit, before=before)

    def _audit(self, actor: str, action: str, subject: str | None, **detail: Any) -> Audit:
        return Audit(at=self._clock(), actor=actor, action=action, subject=subject, detail=detail)


def _issue(user_id: str, now: float) -> tuple[Issued, NewKey]:
    key = new_api_key()
    record = KeyRecord(id=key.id, user_id=user_id, created_at=now, revoked_at=None)
    new_key = NewKey(id=key.id, user_id=user_id, secret=hash_secret(key.secret), created_at=now)
    return Issued(record=record, key=key), new_key


def _check_name(name: str) -> None:
    is_reserved = name == RESERVED_NAME or name.startswith(RESERVED_START)
    if is_reserved or not re.fullmatch(NAME_PATTERN, name):
        message = (
            f"name must be {_ALLOWED_NAME}, other than {RESERVED_NAME!r} "
            f"and without the prefix {RESERVED_START!r} (got {name[:80]!r})"
        )
        raise RequestError("invalid_value", message, param="name")


def _no_user(user_id: str) -> RequestError:
    return RequestError("not_found", f"there is no user {user_id[:80]!r}", param="user")


def _no_key(key_id: str) -> RequestError:
    return RequestError("not_found", f"there is no active key {key_id[:80]!r}", param="key")
