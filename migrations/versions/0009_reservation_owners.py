"""Owners of reservations, so that those of a dead server are released with its lease."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("reservations", sa.Column("owner", sa.String(64)))
    op.create_index("ix_reservations_owner", "reservations", ["owner"])


def downgrade() -> None:
    op.drop_index("ix_reservations_owner", "reservations")
    op.drop_column("reservations", "owner")
