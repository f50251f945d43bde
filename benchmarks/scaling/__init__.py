"""Projections of published runs from their small sizes to their large ones, compared with what was measured there."""
