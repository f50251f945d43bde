"""Schemas of projects and API keys, and the sources from which clients read their key."""
