"""Canaries: repeated runs of recommended configurations that reveal whether these became slower."""
