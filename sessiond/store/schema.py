"""The tables and their column types. `migrations` creates them; a test compares the two."""

from typing import Any

import sqlalchemy as sa

# Postgres can't store NUL, so NUL is stored as an escape character and a digit, and the escape
# character as itself and another digit.
_NUL, _ESCAPE = "\0", "\x1a"
_ESCAPED = ((_ESCAPE, _ESCAPE + "1"), (_NUL, _ESCAPE + "0"))


def escaped(text: str) -> str:
    """The text without NUL."""
    for plain, written in _ESCAPED:
        text = text.replace(plain, written)
    return text


def unescaped(text: str) -> str:
    """The text before `escaped`."""
    for plain, written in reversed(_ESCAPED):
        text = text.replace(written, plain)
    return text


class _AnyText(sa.TypeDecorator[str]):
    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        if value is None or dialect.name != "postgresql":
            return value
        return escaped(value)

    def process_result_value(self, value: Any | None, dialect: sa.Dialect) -> str | None:
        if value is None or dialect.name != "postgresql":
            return value
        return unescaped(value)


class AnyText(_AnyText):
    """Text of any length."""

    impl = sa.Text
    cache_ok = True


class Id(_AnyText):
    """An id, with any characters: clients may look up any id."""

    impl = sa.String(64)
    cache_ok = True


metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _partial(name: str, *columns: str, where: str) -> sa.Index:
    """A partial index. Only a query with the same text as its condition uses it."""
    condition = sa.text(where)
    return sa.Index(f"ix_{name}", *columns, sqlite_where=condition, postgresql_where=condition)


users = sa.Table(
    "users",
    metadata,
    sa.Column("id", sa.String(255), primary_key=True),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("context_policy", sa.JSON(none_as_null=True)),  # null: the server's
    sa.Column("name", sa.String(64)),  # null: stored by a first turn, not added by an admin
    sa.Column("role", sa.String(16), nullable=False, server_default="user"),
    sa.Column("salt", sa.LargeBinary),  # separates this user's cached blocks from other users'
    sa.Column("revoked_at", sa.Double),
    sa.Index(None, "created_at", "id"),
    # active users only: the name of a removed user can be used again
    sa.Index(
        None,
        "name",
        unique=True,
        sqlite_where=sa.text("revoked_at IS NULL"),
        postgresql_where=sa.text("revoked_at IS NULL"),
    ),
)

keys = sa.Table(
    "keys",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),  # the public part of the key
    sa.Column("user_id", sa.ForeignKey("users.id"), nullable=False),
    sa.Column("salt", sa.LargeBinary, nullable=False),
    sa.Column("hash", sa.LargeBinary, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("revoked_at", sa.Double),
    sa.Index(None, "user_id"),
)

# Actions of admins. No foreign keys: entries outlive the users and keys that they name.
audit_log = sa.Table(
    "audit_log",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("actor", sa.String(255), nullable=False),
    sa.Column("action", sa.String(32), nullable=False),
    sa.Column("subject", sa.String(255)),
    sa.Column("detail", sa.JSON, nullable=False),
)

# A user's limits (null: none) and usage, in one row so that one statement compares them. Usage:
# running turns, tokens used or reserved in the current minute and day of UTC.
quotas = sa.Table(
    "quotas",
    metadata,
    sa.Column("user_id", sa.ForeignKey("users.id"), primary_key=True),
    sa.Column("max_sessions", sa.BigInteger),
    sa.Column("max_concurrent_turns", sa.BigInteger),
    sa.Column("max_resident_blocks", sa.BigInteger),
    sa.Column("max_host_bytes", sa.BigInteger),
    sa.Column("max_disk_bytes", sa.BigInteger),
    sa.Column("tokens_per_minute", sa.BigInteger),
    sa.Column("tokens_per_day", sa.BigInteger),
    sa.Column("max_context_tokens", sa.BigInteger),
    sa.Column("max_priority", sa.String(16)),
    sa.Column("weight", sa.Double, nullable=False, server_default="1"),
    sa.Column("turns", sa.Integer, nullable=False, server_default="0"),
    sa.Column("minute_start", sa.BigInteger, nullable=False, server_default="0"),  # unix seconds
    sa.Column("minute_tokens", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("day_start", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("day_tokens", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("total_tokens", sa.BigInteger, nullable=False, server_default="0"),  # of all turns
    sa.Column("byte_seconds", sa.Double, nullable=False, server_default="0"),
)

# The part of `quotas` that a running turn has reserved. Its server renews it, so an expired one is
# that of a dead server.
reservations = sa.Table(
    "reservations",
    metadata,
    sa.Column("turn_id", sa.String(64), primary_key=True),  # no foreign key: stored before the turn
    sa.Column("user_id", sa.ForeignKey("users.id"), nullable=False),
    sa.Column("tokens", sa.BigInteger, nullable=False),
    sa.Column("minute_start", sa.BigInteger, nullable=False),  # the windows they are reserved in
    sa.Column("day_start", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.Double, nullable=False),
    sa.Column("owner", sa.String(64)),  # the replica that runs the turn; null: of an older version
    sa.Index(None, "expires_at"),
    sa.Index(None, "owner"),
)

# System prefixes. Ids are stored, as a template may render the current time.
system_prompts = sa.Table(
    "system_prompts",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("user_id", sa.ForeignKey("users.id"), nullable=False),
    sa.Column("text", AnyText),  # null: no instructions
    # A system message that opens the conversation, after the instructions or in place of the
    # template's default.
    sa.Column("opening_text", AnyText),
    sa.Column("token_ids", sa.LargeBinary, nullable=False),
    sa.Column("tokens", sa.Integer, nullable=False),
)

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("user_id", sa.ForeignKey("users.id"), nullable=False),
    sa.Column("model", sa.String(255), nullable=False),
    sa.Column("vocab_size", sa.Integer, nullable=False),  # identifies the ids, with the model
    sa.Column("system_prompt_id", sa.ForeignKey("system_prompts.id"), nullable=False),
    # The last finished turn. No foreign key: turns refer to sessions, which would be a cycle.
    sa.Column("tip_id", Id),
    sa.Column("context_tokens", sa.Integer, nullable=False),
    sa.Column("retention", sa.String(16), nullable=False),
    sa.Column("priority", sa.String(16), nullable=False),
    sa.Column("fidelity", sa.String(16), nullable=False),
    sa.Column("metadata", sa.JSON, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("last_active_at", sa.Double, nullable=False),
    sa.Column("closed_at", sa.Double),
    sa.Column("context_policy", sa.JSON(none_as_null=True)),  # null: the user's
    sa.Column("ttl_s", sa.Double),  # of retention `hold`; null: the server's setting
    # The replica that may change the session, and the number of claims: a former owner can't
    # commit. No foreign key: an owner without a row in `replicas` is dead.
    sa.Column("owner", sa.String(64)),
    sa.Column("epoch", sa.Integer, nullable=False, server_default="0"),
    # When the row is deleted. Null: the session is open, or other sessions need its turns.
    sa.Column("forget_at", sa.Double),
    # Turns, and tokens of these and of summaries. Null: stored by an older version.
    sa.Column("usage_turns", sa.BigInteger),
    sa.Column("usage_input", sa.BigInteger),
    sa.Column("usage_cached", sa.BigInteger),
    sa.Column("usage_output", sa.BigInteger),
    _partial("sessions_open", "last_active_at", "id", where="closed_at IS NULL"),
    _partial("sessions_closed", "last_active_at", "id", where="closed_at IS NOT NULL"),
    _partial("sessions_open_of_user", "user_id", "last_active_at", "id", where="closed_at IS NULL"),
    _partial(
        "sessions_closed_of_user", "user_id", "last_active_at", "id", where="closed_at IS NOT NULL"
    ),
    _partial("sessions_empty", "user_id", where="closed_at IS NULL AND tip_id IS NULL"),
    _partial("sessions_forgotten", "user_id", "forget_at", where="forget_at IS NOT NULL"),
    sa.Index(None, "tip_id"),
    sa.Index(None, "system_prompt_id"),
)

# Live servers on this database.
replicas = sa.Table(
    "replicas",
    metadata,
    sa.Column("id", Id, primary_key=True),  # unique to a run of the server
    sa.Column("name", sa.String(255), nullable=False),  # the same for the next run
    sa.Column("started_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double, nullable=False),  # the server is dead unless it renews it
    sa.Column("ballast", sa.LargeBinary),  # null except for a moment: see `replicas.fill`
    sa.Index(None, "name"),
)

turns = sa.Table(
    "turns",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("user_id", sa.ForeignKey("users.id"), nullable=False),
    sa.Column("session_id", sa.ForeignKey("sessions.id"), nullable=False),
    sa.Column("parent_id", sa.ForeignKey("turns.id")),
    sa.Column("system_prompt_id", sa.ForeignKey("system_prompts.id"), nullable=False),
    sa.Column("message_id", sa.String(64), nullable=False),
    sa.Column("model", sa.String(255), nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("generate", sa.Boolean, nullable=False),
    sa.Column("awaits_reply", sa.Boolean, nullable=False),  # the context ends without a reply
    sa.Column("request", sa.JSON, nullable=False),
    sa.Column("previous_response_id", Id),  # as in the request
    sa.Column("seed", sa.BigInteger, nullable=False),
    sa.Column("start_tokens", sa.Integer, nullable=False),  # of the context before the turn
    sa.Column("input_tokens", sa.Integer, nullable=False),  # ids in input_ids
    sa.Column("context_tokens", sa.Integer),  # of the context after it; null: running or aborted
    sa.Column("input_ids", sa.LargeBinary, nullable=False),
    sa.Column("reply_ids", sa.LargeBinary),
    sa.Column("reason", sa.String(32)),
    sa.Column("error_code", sa.String(64)),
    sa.Column("error_message", AnyText),
    sa.Column("reused_tokens", sa.Integer, nullable=False, server_default="0"),
    sa.Column("restored_tokens", sa.Integer, nullable=False, server_default="0"),
    sa.Column("recomputed_tokens", sa.Integer, nullable=False, server_default="0"),
    sa.Column("new_tokens", sa.Integer, nullable=False, server_default="0"),
    sa.Column("output_tokens", sa.Integer, nullable=False, server_default="0"),
    sa.Column("kv_bytes", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("blocks", sa.Integer, nullable=False, server_default="0"),
    sa.Column("queue_ms", sa.Double, nullable=False, server_default="0"),
    sa.Column("ttft_ms", sa.Double),
    sa.Column("total_ms", sa.Double, nullable=False, server_default="0"),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("finished_at", sa.Double),
    sa.Column("deleted_at", sa.Double),  # the id is deleted; the turn's tokens stay
    sa.Column("restored_from", sa.String(8), nullable=False, server_default="none"),
    sa.Column("context", sa.String(16), nullable=False, server_default="full"),
    sa.Column("fidelity", sa.String(16), nullable=False, server_default="exact"),
    sa.Column("summary_tokens", sa.Integer, nullable=False, server_default="0"),
    # Visible spans [start, stop) of the ids that earlier turns added, and a summary before them.
    # Null: those of the parent, and the parent.
    # tokens of the whole turns that the input starts with (0: a dropped one); null: none
    sa.Column("parts", sa.JSON(none_as_null=True)),
    sa.Column("visible", sa.JSON(none_as_null=True)),
    sa.Column("summary_id", Id),  # no foreign key: a summary points to a turn
    # Of all messages in the context up to this turn; null: not known.
    sa.Column("messages_digest", sa.String(64)),
    # Ids that the context's turns up to this one have added, visible or not. Null: running,
    # aborted, or of an older version.
    sa.Column("history_tokens", sa.BigInteger),
    sa.CheckConstraint(
        "status IN ('running', 'completed', 'incomplete', 'failed', 'cancelled')", name="status"
    ),
    sa.Index(None, "session_id", "created_at"),
    sa.Index(None, "parent_id"),
    sa.Index(None, "system_prompt_id"),
    sa.Index(None, "summary_id"),
    sa.Index(None, "user_id", "messages_digest"),
    _partial("turns_running", "session_id", where="status = 'running'"),
    _partial("turns_outside", "session_id", "created_at", "id", where="context_tokens IS NULL"),
)


# Written by the model; part of a context as one pair of messages after the system prefix.
summaries = sa.Table(
    "summaries",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("user_id", sa.ForeignKey("users.id"), nullable=False),
    sa.Column("session_id", sa.ForeignKey("sessions.id"), nullable=False),
    sa.Column("turn_id", sa.ForeignKey("turns.id"), nullable=False),  # the last that it covers
    sa.Column("token_ids", sa.LargeBinary, nullable=False),  # of the pair
    sa.Column("tokens", sa.Integer, nullable=False),
    sa.Column("text", AnyText, nullable=False),
    sa.Column("input_tokens", sa.Integer, nullable=False),  # usage of its writing
    sa.Column("cached_tokens", sa.Integer, nullable=False),
    sa.Column("output_tokens", sa.Integer, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Index(None, "session_id", "created_at"),
    sa.Index(None, "turn_id"),
)

# Results of requests with an idempotency key.
idempotency_keys = sa.Table(
    "idempotency_keys",
    metadata,
    sa.Column("user_id", sa.ForeignKey("users.id"), primary_key=True),
    sa.Column("key", sa.String(255), primary_key=True),
    sa.Column("digest", sa.String(64), nullable=False),  # of the request
    # A response or conversation. No foreign key: the key is claimed before they are stored.
    sa.Column("result_id", Id, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Index(None, "created_at"),
)

items = sa.Table(
    "items",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("user_id", sa.ForeignKey("users.id"), nullable=False),
    sa.Column("session_id", sa.ForeignKey("sessions.id"), nullable=False),
    sa.Column("turn_id", sa.ForeignKey("turns.id"), nullable=False),
    sa.Column("position", sa.Integer, nullable=False),  # in the turn; the reply is the last
    sa.Column("is_reply", sa.Boolean, nullable=False),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("text", AnyText, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.UniqueConstraint("turn_id", "position"),
    sa.Index(None, "session_id"),  # used when a session is deleted
)


def is_running(some: sa.FromClause) -> sa.ColumnElement[bool]:
    """Whether turns run, with the same text as the condition of their index."""
    found: sa.ColumnElement[bool] = some.c.status == sa.literal_column("'running'")
    return found
