"""Table rows and column types. Queries are in `db.queries`, sessions in `db.session`."""
