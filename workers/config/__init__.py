"""Configuration of a worker by its owner: settings, allowed code of users, overrides of the fingerprint. Reads no
hardware."""
