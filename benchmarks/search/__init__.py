"""Trials and GPU-seconds that samplers need on tables of measured configurations."""
