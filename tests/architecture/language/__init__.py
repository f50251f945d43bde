"""Measure how the code and the documentation read: names, docstrings, comments, sentences.

`python -m tests.architecture.language` prints the figures; `--list` prints the places to mend. The rules are in `vocabulary`.
"""
