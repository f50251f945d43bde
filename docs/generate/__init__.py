"""Builds the documentation site: fills in what the code says itself, and runs the site generator.

`python -m docs.generate` builds it (`make docs`), `python -m docs.generate.check` checks the pages (`make check-docs`).
"""
