"""Code blocks of the pages, and what each must satisfy; docs/contributing/writing-docs.md states the rules for writers."""
