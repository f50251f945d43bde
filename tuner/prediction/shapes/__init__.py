"""Shapes of models by their source: read from a `config.json`, counted on a built model, or traced (the user's own
code)."""
