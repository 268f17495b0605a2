"""Indexes and keys for deletion, resending and idempotency."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("turns", sa.Column("messages_digest", sa.String(64)))
    op.create_index("ix_turns_user_id_messages_digest", "turns", ["user_id", "messages_digest"])
    op.create_index("ix_turns_system_prompt_id", "turns", ["system_prompt_id"])
    op.create_index("ix_turns_summary_id", "turns", ["summary_id"])
    op.create_table(
        "idempotency_keys",
        sa.Column("user_id", sa.String(255), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("result_id", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("user_id", "key", name="pk_idempotency_keys"),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_idempotency_keys_user_id_users"
        ),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])


def downgrade() -> None:
    op.drop_table("idempotency_keys")
    op.drop_index("ix_turns_summary_id", "turns")
    op.drop_index("ix_turns_system_prompt_id", "turns")
    op.drop_index("ix_turns_user_id_messages_digest", "turns")
    op.drop_column("turns", "messages_digest")
