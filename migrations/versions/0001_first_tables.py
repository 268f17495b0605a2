"""First tables: users, system prompts, sessions, turns with their token ids and usage, items."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "users",
        sa.Column("id", sa.String(255), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
    )
    op.create_table(
        "system_prompts",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(255), nullable=False),
        sa.Column("text", sa.Text),
        sa.Column("opening_text", sa.Text),
        sa.Column("token_ids", sa.LargeBinary, nullable=False),
        sa.Column("tokens", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_system_prompts"),
        _points("system_prompts", "user_id", "users"),
    )
    _create_sessions()
    _create_turns()
    _create_items()


def downgrade() -> None:
    op.drop_table("items")
    op.drop_table("turns")
    op.drop_table("sessions")
    op.drop_table("system_prompts")
    op.drop_table("users")


def _points(table: str, column: str, target: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [f"{target}.id"], name=f"fk_{table}_{column}_{target}")


def _create_sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(255), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("vocab_size", sa.Integer, nullable=False),
        sa.Column("system_prompt_id", sa.String(64), nullable=False),
        sa.Column("tip_id", sa.String(64)),
        sa.Column("context_tokens", sa.Integer, nullable=False),
        sa.Column("retention", sa.String(16), nullable=False),
        sa.Column("priority", sa.String(16), nullable=False),
        sa.Column("fidelity", sa.String(16), nullable=False),
        sa.Column("metadata", sa.JSON, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("last_active_at", sa.Double, nullable=False),
        sa.Column("closed_at", sa.Double),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
        _points("sessions", "user_id", "users"),
        _points("sessions", "system_prompt_id", "system_prompts"),
    )
    op.create_index(
        "ix_sessions_user_id_last_active_at_id", "sessions", ["user_id", "last_active_at", "id"]
    )


def _create_turns() -> None:
    op.create_table(
        "turns",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(255), nullable=False),
        sa.Column("session_id", sa.String(64), nullable=False),
        sa.Column("parent_id", sa.String(64)),
        sa.Column("system_prompt_id", sa.String(64), nullable=False),
        sa.Column("message_id", sa.String(64), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        *_request_columns(),
        *_ending_columns(),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("finished_at", sa.Double),
        sa.Column("deleted_at", sa.Double),
        sa.PrimaryKeyConstraint("id", name="pk_turns"),
        sa.CheckConstraint(
            "status IN ('running', 'completed', 'incomplete', 'failed', 'cancelled')",
            name=op.f("ck_turns_status"),
        ),
        _points("turns", "user_id", "users"),
        _points("turns", "session_id", "sessions"),
        _points("turns", "parent_id", "turns"),
        _points("turns", "system_prompt_id", "system_prompts"),
    )
    op.create_index("ix_turns_session_id_created_at", "turns", ["session_id", "created_at"])
    op.create_index("ix_turns_parent_id", "turns", ["parent_id"])
    op.create_index("ix_turns_status", "turns", ["status"])


def _request_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("generate", sa.Boolean, nullable=False),
        sa.Column("awaits_reply", sa.Boolean, nullable=False),
        sa.Column("request", sa.JSON, nullable=False),
        sa.Column("previous_response_id", sa.String(64)),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("start_tokens", sa.Integer, nullable=False),
        sa.Column("input_tokens", sa.Integer, nullable=False),
        sa.Column("context_tokens", sa.Integer),
        sa.Column("input_ids", sa.LargeBinary, nullable=False),
    ]


def _ending_columns() -> list[sa.Column[Any]]:
    counts = ("reused_tokens", "restored_tokens", "recomputed_tokens", "new_tokens")
    return [
        sa.Column("reply_ids", sa.LargeBinary),
        sa.Column("reason", sa.String(32)),
        sa.Column("error_code", sa.String(64)),
        sa.Column("error_message", sa.Text),
        *(sa.Column(name, sa.Integer, nullable=False, server_default="0") for name in counts),
        sa.Column("output_tokens", sa.Integer, nullable=False, server_default="0"),
        sa.Column("kv_bytes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("blocks", sa.Integer, nullable=False, server_default="0"),
        sa.Column("queue_ms", sa.Double, nullable=False, server_default="0"),
        sa.Column("ttft_ms", sa.Double),
        sa.Column("total_ms", sa.Double, nullable=False, server_default="0"),
    ]


def _create_items() -> None:
    op.create_table(
        "items",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(255), nullable=False),
        sa.Column("session_id", sa.String(64), nullable=False),
        sa.Column("turn_id", sa.String(64), nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("is_reply", sa.Boolean, nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_items"),
        sa.UniqueConstraint("turn_id", "position", name="uq_items_turn_id_position"),
        _points("items", "user_id", "users"),
        _points("items", "session_id", "sessions"),
        _points("items", "turn_id", "turns"),
    )
