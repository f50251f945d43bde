"""Schemas of studies: request, state, result, comparisons and changes."""
