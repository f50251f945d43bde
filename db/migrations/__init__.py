"""Alembic revisions, packaged with the code and run by `db.session.upgrade`."""
