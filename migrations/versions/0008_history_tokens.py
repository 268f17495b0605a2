"""History tokens of turns and usage of sessions, so that nothing sums a whole conversation.

Rows of an older version have none: there, history is summed up to the nearest turn that has, usage
over all turns of the session.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_INDEX = "ix_turns_outside"
_USAGE = ("usage_turns", "usage_input", "usage_cached", "usage_output")
_EMPTY = sa.text("closed_at IS NULL AND tip_id IS NULL")
_OUTSIDE = sa.text("context_tokens IS NULL")


def upgrade() -> None:
    op.add_column("turns", sa.Column("history_tokens", sa.BigInteger))
    for name in _USAGE:
        op.add_column("sessions", sa.Column(name, sa.BigInteger))
    op.create_index(
        "ix_sessions_empty",
        "sessions",
        ["user_id"],
        sqlite_where=_EMPTY,
        postgresql_where=_EMPTY,
    )
    op.create_index(
        _INDEX,
        "turns",
        ["session_id", "created_at", "id"],
        sqlite_where=_OUTSIDE,
        postgresql_where=_OUTSIDE,
    )


def downgrade() -> None:
    op.drop_index(_INDEX, "turns")
    op.drop_index("ix_sessions_empty", "sessions")
    for name in _USAGE:
        op.drop_column("sessions", name)
    op.drop_column("turns", "history_tokens")
