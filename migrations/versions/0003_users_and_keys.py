"""Users with names, roles and salts; their keys; the audit log."""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_ADDED = ("name", "role", "salt", "revoked_at")


def upgrade() -> None:
    op.add_column("users", sa.Column("name", sa.String(64)))
    op.add_column("users", sa.Column("role", sa.String(16), nullable=False, server_default="user"))
    op.add_column("users", sa.Column("salt", sa.LargeBinary))
    op.add_column("users", sa.Column("revoked_at", sa.Double))
    _give_salts()
    op.create_index(
        "ix_users_name",
        "users",
        ["name"],
        unique=True,
        sqlite_where=sa.text("revoked_at IS NULL"),
        postgresql_where=sa.text("revoked_at IS NULL"),
    )
    _create_keys()
    _create_audit_log()


def downgrade() -> None:
    op.drop_table("audit_log")
    op.drop_table("keys")
    op.drop_index("ix_users_name", "users")
    for column in _ADDED:
        op.drop_column("users", column)


def _give_salts() -> None:
    users = sa.table("users", sa.column("id"), sa.column("salt"))
    connection = op.get_bind()
    for user_id in connection.scalars(sa.select(users.c.id)).all():
        connection.execute(
            users.update().where(users.c.id == user_id).values(salt=secrets.token_bytes(32))
        )


def _create_keys() -> None:
    op.create_table(
        "keys",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("user_id", sa.String(255), nullable=False),
        sa.Column("salt", sa.LargeBinary, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("revoked_at", sa.Double),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_keys_user_id_users"),
    )
    op.create_index("ix_keys_user_id", "keys", ["user_id"])


def _create_audit_log() -> None:
    op.create_table(
        "audit_log",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("subject", sa.String(255)),
        sa.Column("detail", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_log"),
    )
