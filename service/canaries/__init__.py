"""Canaries: repeated runs of recommended configurations that show whether they became slower."""
