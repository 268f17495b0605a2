"""Records of users, keys and the audit log. Times in unix seconds."""

from dataclasses import dataclass
from typing import Any, Literal

from sessiond.api_keys import ApiKey, HashedSecret

UserRole = Literal["user", "admin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRecord:
    """A user's row. `name` is None for a user never added, as `local` with `--auth none`."""

    id: str
    name: str | None
    role: UserRole
    created_at: float
    revoked_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewUser:
    """A user to be stored. `salt` separates its cached blocks from other users'."""

    id: str
    name: str
    role: UserRole
    salt: bytes
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A key's row without the hash of its secret."""

    id: str
    user_id: str
    created_at: float
    revoked_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A new key with its secret, which is never shown again."""

    record: KeyRecord
    key: ApiKey


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key to be stored."""

    id: str
    user_id: str
    secret: HashedSecret
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOwner:
    """The owner of a valid key, and the hash of its secret."""

    user_id: str
    role: UserRole
    salt: bytes
    secret: HashedSecret


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOwner:
    """The owner of a session, and the salt of that user's blocks."""

    user_id: str
    salt: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """One action of an admin: actor, action, target, time and details."""

    at: float
    actor: str
    action: str
    subject: str | None
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """A row of the audit log; ids increase."""

    id: int
    audit: Audit
