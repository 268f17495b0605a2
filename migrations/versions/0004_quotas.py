"""Quota limits and usage of users, and reservations of running turns."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_LIMITS = (
    "max_sessions",
    "max_concurrent_turns",
    "max_resident_blocks",
    "max_host_bytes",
    "max_disk_bytes",
    "tokens_per_minute",
    "tokens_per_day",
    "max_context_tokens",
)
_TAKEN = ("minute_start", "minute_tokens", "day_start", "day_tokens", "total_tokens")


def upgrade() -> None:
    op.create_table(
        "quotas",
        sa.Column("user_id", sa.String(255), nullable=False),
        *(sa.Column(name, sa.BigInteger) for name in _LIMITS),
        sa.Column("max_priority", sa.String(16)),
        sa.Column("weight", sa.Double, nullable=False, server_default="1"),
        sa.Column("turns", sa.Integer, nullable=False, server_default="0"),
        *(sa.Column(name, sa.BigInteger, nullable=False, server_default="0") for name in _TAKEN),
        sa.Column("byte_seconds", sa.Double, nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("user_id", name="pk_quotas"),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_quotas_user_id_users"),
    )
    op.create_table(
        "reservations",
        sa.Column("turn_id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(255), nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("minute_start", sa.BigInteger, nullable=False),
        sa.Column("day_start", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("turn_id", name="pk_reservations"),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_reservations_user_id_users"),
    )
    op.create_index("ix_reservations_expires_at", "reservations", ["expires_at"])


def downgrade() -> None:
    op.drop_table("reservations")
    op.drop_table("quotas")
