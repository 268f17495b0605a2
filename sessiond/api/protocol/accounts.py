"""Users, keys and the audit log as JSON objects, for HTTP and the command line."""

import msgspec

from sessiond.api.protocol.resources import Json
from sessiond.store.account_records import AuditRecord, Issued, KeyRecord, UserRecord


def user_object(user: UserRecord) -> Json:
    """Build a user."""
    return {"object": "user", **msgspec.to_builtins(user)}


def key_object(key: KeyRecord) -> Json:
    """Build a key, without its secret."""
    return {"object": "key", **msgspec.to_builtins(key)}


def issued_object(issued: Issued) -> Json:
    """Build a new key, including its secret."""
    return key_object(issued.record) | {"key": issued.key.text}


def audit_object(row: AuditRecord) -> Json:
    """Build a row of the audit log."""
    return {"object": "audit", "id": row.id, **msgspec.to_builtins(row.audit)}
