"""Checks of pages: each module returns lines that name file, line and remedy."""
