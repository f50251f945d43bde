"""Queries on studies with a target."""
