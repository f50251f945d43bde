"""Rows and queries. Values come from api_schemas; rules and HTTP live in the service."""
