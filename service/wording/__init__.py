"""Sentences that the command line and the pages share. Knows no HTTP and no database."""
