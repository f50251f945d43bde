"""Database queries, one module per subject. Table rows are in `db.tables`; all rules are in the service."""
