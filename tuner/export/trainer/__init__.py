"""Exports for transformers' Trainer and the programs that are built on it."""
