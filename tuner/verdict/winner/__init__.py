"""Runs of a study's winner after the verdict: the resume check and the sustained run."""
