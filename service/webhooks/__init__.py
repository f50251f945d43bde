"""Webhooks: settings, secrets, allowed addresses, deliveries."""
