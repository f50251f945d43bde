"""Configuration by the worker's owner: settings, allowed code, overrides. Reads no hardware."""
