"""Rules over a diagnosis: the evidence of a mistake, the change that would remove it, and the gain in step time.

A rule reads figures of the trace, and of the trial where it is known: then its remedy is a change of knobs that the
study's space and the memory gate admit, and without one the rule is silent. docs/explanation/diagnosis.md has each rule with its
source.
"""
