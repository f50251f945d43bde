"""Rules that find mistakes in a diagnosed trace: each gives the evidence, the change that would remove the mistake, and
the expected gain in step time.

A rule reads figures of the trace, and of the trial where it is known: then its remedy is a change of knobs that the
study's space and the memory gate admit, and without one the rule is silent. docs/explanation/diagnosis.md has each rule with its
source.
"""
