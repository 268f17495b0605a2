"""Visible spans of turns, summaries, context policies, and retention of KV."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_ADDED = {
    "users": ("context_policy",),
    "sessions": ("context_policy", "ttl_s"),
    "turns": (
        "restored_from",
        "context",
        "fidelity",
        "summary_tokens",
        "visible",
        "summary_id",
    ),
}


def upgrade() -> None:
    op.add_column("users", sa.Column("context_policy", sa.JSON))
    op.add_column("sessions", sa.Column("context_policy", sa.JSON))
    op.add_column("sessions", sa.Column("ttl_s", sa.Double))
    for column in (
        _counted("restored_from", sa.String(8), "none"),
        _counted("context", sa.String(16), "full"),
        _counted("fidelity", sa.String(16), "exact"),
        _counted("summary_tokens", sa.Integer, "0"),
        sa.Column("visible", sa.JSON),
        sa.Column("summary_id", sa.String(64)),
    ):
        op.add_column("turns", column)
    _create_summaries()


def downgrade() -> None:
    op.drop_table("summaries")
    for table, columns in _ADDED.items():
        for column in columns:
            op.drop_column(table, column)


def _counted(name: str, kind: sa.types.TypeEngine[Any] | type, default: str) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, server_default=default)


def _points(column: str, target: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        [column], [f"{target}.id"], name=f"fk_summaries_{column}_{target}"
    )


def _create_summaries() -> None:
    counts = ("input_tokens", "cached_tokens", "output_tokens")
    op.create_table(
        "summaries",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(255), nullable=False),
        sa.Column("session_id", sa.String(64), nullable=False),
        sa.Column("turn_id", sa.String(64), nullable=False),
        sa.Column("token_ids", sa.LargeBinary, nullable=False),
        sa.Column("tokens", sa.Integer, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        *(sa.Column(name, sa.Integer, nullable=False) for name in counts),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_summaries"),
        _points("user_id", "users"),
        _points("session_id", "sessions"),
        _points("turn_id", "turns"),
    )
    op.create_index("ix_summaries_session_id_created_at", "summaries", ["session_id", "created_at"])
    op.create_index("ix_summaries_turn_id", "summaries", ["turn_id"])
