"""Owner replica of each session, and leases of replicas."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("owner", sa.String(64)))
    op.add_column("sessions", sa.Column("epoch", sa.Integer, nullable=False, server_default="0"))
    op.create_table(
        "replicas",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("ballast", sa.LargeBinary),
        sa.PrimaryKeyConstraint("id", name="pk_replicas"),
    )
    op.create_index("ix_replicas_name", "replicas", ["name"])


def downgrade() -> None:
    op.drop_table("replicas")
    op.drop_column("sessions", "epoch")
    op.drop_column("sessions", "owner")
