"""Models by name: configurations read from a Hugging Face hub, without weights and without code."""
