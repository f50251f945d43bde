"""Shapes of models that a worker built: counted (models of transformers), or traced (the user's own code)."""
