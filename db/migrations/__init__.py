"""Alembic revisions, packaged with the code; `db.session.upgrade` runs them."""
