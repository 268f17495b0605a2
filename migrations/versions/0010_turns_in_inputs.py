"""Sizes of whole turns in the input of a turn, so that a policy can drop them one by one."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("turns", sa.Column("parts", sa.JSON))


def downgrade() -> None:
    op.drop_column("turns", "parts")
