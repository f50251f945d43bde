"""Schemas of events and of the webhooks that deliver them."""
