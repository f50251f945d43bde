"""Questions to the database, one noun a file. Leaves rows to `db.tables` and every rule to the service."""
