"""Indexes that keep per-turn and periodic queries from scanning all sessions."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_TOMBSTONE_S = 24 * 3600
_PARTIAL = (
    ("sessions_open", "sessions", ["last_active_at", "id"], "closed_at IS NULL"),
    ("sessions_closed", "sessions", ["last_active_at", "id"], "closed_at IS NOT NULL"),
    (
        "sessions_open_of_user",
        "sessions",
        ["user_id", "last_active_at", "id"],
        "closed_at IS NULL",
    ),
    (
        "sessions_closed_of_user",
        "sessions",
        ["user_id", "last_active_at", "id"],
        "closed_at IS NOT NULL",
    ),
    ("sessions_forgotten", "sessions", ["user_id", "forget_at"], "forget_at IS NOT NULL"),
    ("turns_running", "turns", ["session_id"], "status = 'running'"),
)
_WHOLE = (
    ("sessions_tip_id", "sessions", ["tip_id"]),
    ("sessions_system_prompt_id", "sessions", ["system_prompt_id"]),
    ("items_session_id", "items", ["session_id"]),
    ("users_created_at_id", "users", ["created_at", "id"]),
)
_REPLACED = (
    ("sessions_user_id_last_active_at_id", "sessions", ["user_id", "last_active_at", "id"]),
    ("turns_status", "turns", ["status"]),
)

# Turns of closed sessions that no open session needs. Until this version, the next close of a
# session of the same user deleted them; from now on a close only deletes turns near its own.
_LEFT = """
CREATE TEMPORARY TABLE left_turns AS
WITH RECURSIVE of_closed(id, parent_id) AS (
    SELECT turns.id, turns.parent_id FROM turns JOIN sessions ON sessions.id = turns.session_id
    WHERE sessions.closed_at IS NOT NULL
), needed(id, parent_id) AS (
    SELECT id, parent_id FROM of_closed WHERE
    EXISTS (SELECT 1 FROM turns JOIN sessions ON sessions.id = turns.session_id
        WHERE turns.parent_id = of_closed.id AND sessions.closed_at IS NULL)
    OR EXISTS (SELECT 1 FROM sessions
        WHERE sessions.tip_id = of_closed.id AND sessions.closed_at IS NULL)
    UNION
    SELECT parent.id, parent.parent_id FROM turns AS parent
    JOIN needed ON parent.id = needed.parent_id
)
SELECT id FROM of_closed WHERE id NOT IN (SELECT id FROM needed)
"""
_ERASE = (
    _LEFT,
    "DELETE FROM summaries WHERE turn_id IN (SELECT id FROM left_turns)",
    "DELETE FROM items WHERE turn_id IN (SELECT id FROM left_turns)",
    "UPDATE turns SET parent_id = NULL WHERE id IN (SELECT id FROM left_turns)",
    "DELETE FROM turns WHERE id IN (SELECT id FROM left_turns)",
    "DROP TABLE left_turns",
    """
    DELETE FROM summaries WHERE EXISTS (SELECT 1 FROM sessions
        WHERE sessions.id = summaries.session_id AND sessions.closed_at IS NOT NULL)
    AND NOT EXISTS (SELECT 1 FROM turns WHERE turns.summary_id = summaries.id)
    """,
)


def upgrade() -> None:
    op.add_column("sessions", sa.Column("forget_at", sa.Double))
    for name, table, columns, where in _PARTIAL:
        condition = sa.text(where)
        op.create_index(
            f"ix_{name}", table, columns, sqlite_where=condition, postgresql_where=condition
        )
    for name, table, columns in _WHOLE:
        op.create_index(f"ix_{name}", table, columns)
    for name, table, _ in _REPLACED:
        op.drop_index(f"ix_{name}", table)
    for statement in _ERASE:  # by those indexes
        op.execute(statement)
    op.execute(
        sa.text(
            "UPDATE sessions SET forget_at = closed_at + :tombstone_s WHERE closed_at IS NOT NULL "
            "AND NOT EXISTS (SELECT 1 FROM turns WHERE turns.session_id = sessions.id) "
            "AND NOT EXISTS (SELECT 1 FROM summaries WHERE summaries.session_id = sessions.id)"
        ).bindparams(tombstone_s=_TOMBSTONE_S)
    )


def downgrade() -> None:
    for name, table, columns in _REPLACED:
        op.create_index(f"ix_{name}", table, columns)
    for name, table, _ in reversed(_WHOLE):
        op.drop_index(f"ix_{name}", table)
    for name, table, _, _ in reversed(_PARTIAL):
        op.drop_index(f"ix_{name}", table)
    op.drop_column("sessions", "forget_at")
