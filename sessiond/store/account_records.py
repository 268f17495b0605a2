"""Users, keys and the audit log as they go into the store and come out. Times in unix seconds."""

from dataclasses import dataclass
from typing import Any, Literal

from sessiond.api_keys import ApiKey, HashedSecret

UserRole = Literal["user", "admin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRecord:
    """A user's row. `name` None: one that was never added, the `local` of `--auth none`."""

    id: str
    name: str | None
    role: UserRole
    created_at: float
    revoked_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewUser:
    """A user to be stored. `salt` parts what is cached for it from what is cached for others."""

    id: str
    name: str
    role: UserRole
    salt: bytes
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A key's row, without what its secret is checked by."""

    id: str
    user_id: str
    created_at: float
    revoked_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A new key, whole: the only time that it is seen."""

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
    """Whose a key is that may be used now, and what its secret is checked by."""

    user_id: str
    role: UserRole
    salt: bytes
    secret: HashedSecret


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOwner:
    """Whose a session is, and what parts that user's blocks from those of others."""

    user_id: str
    salt: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """One thing that an admin did: who, what, to whom, when, and how exactly."""

    at: float
    actor: str
    action: str
    subject: str | None
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """A row of the audit log; ids grow."""

    id: int
    audit: Audit
