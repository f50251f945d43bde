"""Sections of a study's page: reasons to believe its answer, what to do next, what did not work, its progress and log."""
