"""The space of each backend, a module each: its knobs, when they exist, their values; the walk itself is its parent's."""
