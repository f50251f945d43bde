"""Exports for fine-tuning tools that are built on transformers' Trainer and read a file of their own."""
