"""Describe projects, API keys and where clients find them."""
