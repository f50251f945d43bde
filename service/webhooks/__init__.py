"""Webhooks: settings, secrets, allowed addresses, deliveries of messages."""
