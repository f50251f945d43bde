"""Known mistakes as rules over a diagnosis: what is seen, what would change it, and how much of a step that may save.

A rule reads figures of the trace, and of the trial where it is known: then its remedy is a change of knobs that the study's
space and the memory gate admit, and it is silent where there is none. docs/explanation/diagnosis.md has each rule with its source.
"""
