"""Describe events and the webhooks that deliver them."""
