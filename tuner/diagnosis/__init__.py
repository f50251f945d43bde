"""Diagnosis: findings in the traces of a trial, and the changes of knobs that would remove them."""
