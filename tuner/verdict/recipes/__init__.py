"""Comparison of considered recipes with the stated one, after the answer of a study is known."""
