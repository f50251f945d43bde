"""Database tables and queries. Value schemas are in api_schemas; rules and HTTP are in the service."""
