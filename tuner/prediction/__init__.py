"""Prediction of a configuration's memory and speed before any trial runs. Workers measure; `tuner.search` chooses the
trials."""
