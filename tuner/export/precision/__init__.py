"""Precision of matrix products in exported files, where it is more than a dtype: float8."""
