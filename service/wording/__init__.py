"""Sentences that the command line and the pages share. Depends on neither HTTP nor the database."""
