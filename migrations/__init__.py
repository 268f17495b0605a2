"""Alembic migrations; `sessiond db upgrade` runs them."""
