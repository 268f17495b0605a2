"""What deleting, resending and repeating look rows up by."""

from alembic import op

revision = "0006"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_turns_system_prompt_id", "turns", ["system_prompt_id"])
    op.create_index("ix_turns_summary_id", "turns", ["summary_id"])


def downgrade() -> None:
    op.drop_index("ix_turns_summary_id", "turns")
    op.drop_index("ix_turns_system_prompt_id", "turns")
