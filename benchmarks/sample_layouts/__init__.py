"""Layouts of samples of several lengths, measured beside each other and as predicted."""
