"""Schemas of the tools: arguments, answers and figures."""
