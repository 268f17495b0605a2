"""The tables. What they mean; `migrations` makes them, a test compares the two.

A context is never stored whole: a turn holds the ids that it added, and its parent is the turn that
it was built on, so that forks share their ancestors' rows.
"""

import sqlalchemy as sa

from sessiond.store.column_types import AnyText, Id

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

users = sa.Table(
    "users",
    metadata,
    sa.Column("id", sa.String(255), primary_key=True),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("context_policy", sa.JSON(none_as_null=True)),  # null: the server's
)

# The front of a context. Its ids are frozen at its making: a template may look at the clock.
system_prompts = sa.Table(
    "system_prompts",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("user_id", sa.ForeignKey("users.id"), nullable=False),
    sa.Column("text", AnyText),  # null: no instructions
    # A system message that opened the conversation: it stands where the template puts one, with
    # the instructions before it, or in place of the template's default.
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
    sa.Column("vocab_size", sa.Integer, nullable=False),  # with the model: whose ids these are
    sa.Column("system_prompt_id", sa.ForeignKey("system_prompts.id"), nullable=False),
    # The last finished turn. No foreign key: turns point here, and a circle can't be inserted.
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
    sa.Column("ttl_s", sa.Double),  # of retention `hold`; null: as the server's settings say
    # The replica that may add to the session, and how often that has changed: who was replaced
    # can't commit any more. No foreign key: an owner that is in no row of `replicas` is dead.
    sa.Column("owner", sa.String(64)),
    sa.Column("epoch", sa.Integer, nullable=False, server_default="0"),
    sa.Index(None, "user_id", "last_active_at", "id"),
)

# Servers on this database, as long as they live.
replicas = sa.Table(
    "replicas",
    metadata,
    sa.Column("id", Id, primary_key=True),  # of one run
    sa.Column("name", sa.String(255), nullable=False),  # the same for the next run
    sa.Column("started_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double, nullable=False),  # renewed before that, or it is dead
    sa.Column("ballast", sa.LargeBinary),  # null but for a moment: see `replicas.fill`
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
    sa.Column("awaits_reply", sa.Boolean, nullable=False),  # the context ends in a question
    sa.Column("request", sa.JSON, nullable=False),
    sa.Column("previous_response_id", Id),  # as the client said it
    sa.Column("seed", sa.BigInteger, nullable=False),
    sa.Column("start_tokens", sa.Integer, nullable=False),  # of the context before the turn
    sa.Column("input_tokens", sa.Integer, nullable=False),  # ids in input_ids
    sa.Column("context_tokens", sa.Integer),  # of the context after it; null: it joined none
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
    sa.Column("deleted_at", sa.Double),  # the id is forgotten, what it added is not
    sa.Column("restored_from", sa.String(8), nullable=False, server_default="none"),
    sa.Column("context", sa.String(16), nullable=False, server_default="full"),
    sa.Column("fidelity", sa.String(16), nullable=False, server_default="exact"),
    sa.Column("summary_tokens", sa.Integer, nullable=False, server_default="0"),
    # What the turn saw of the past: spans [start, stop) of the ids that the turns before it added,
    # and a summary before them. Null: what its parent saw, and the parent.
    sa.Column("visible", sa.JSON(none_as_null=True)),
    sa.Column("summary_id", Id),  # no foreign key: a summary points to a turn
    # Of all that was said in the context up to here; null: not known.
    sa.Column("messages_digest", sa.String(64)),
    sa.CheckConstraint(
        "status IN ('running', 'completed', 'incomplete', 'failed', 'cancelled')", name="status"
    ),
    sa.Index(None, "session_id", "created_at"),
    sa.Index(None, "parent_id"),
    sa.Index(None, "system_prompt_id"),
    sa.Index(None, "summary_id"),
    sa.Index(None, "user_id", "messages_digest"),
    sa.Index(None, "status"),
)

# Made by the model, and then part of contexts as one pair of messages behind the front.
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
    sa.Column("input_tokens", sa.Integer, nullable=False),  # what its making took
    sa.Column("cached_tokens", sa.Integer, nullable=False),
    sa.Column("output_tokens", sa.Integer, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Index(None, "session_id", "created_at"),
    sa.Index(None, "turn_id"),
)

# What a request was answered with, for when it comes again.
idempotency_keys = sa.Table(
    "idempotency_keys",
    metadata,
    sa.Column("user_id", sa.ForeignKey("users.id"), primary_key=True),
    sa.Column("key", sa.String(255), primary_key=True),
    sa.Column("digest", sa.String(64), nullable=False),  # of the request
    # A response or conversation. No foreign key: the key is taken before they are stored.
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
)
