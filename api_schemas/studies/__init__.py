"""Describe studies: request, state, result, comparisons and changes."""
