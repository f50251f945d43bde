"""Configurations that can train a recipe, and the reasons why others cannot."""
