"""Rows and column types. Leaves questions to `db.queries`, sessions to `db.session`."""
