"""What the worker's owner set: settings, allowed code, overrides. Reads no hardware."""
