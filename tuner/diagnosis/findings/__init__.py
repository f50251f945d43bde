"""Rules that find mistakes in a diagnosed trace: each gives the evidence, the change that would remove the mistake, and
the expected gain in step time.

A rule uses figures of the trace, and of the trial where the trial is known: its remedy is then a change of knobs that
the study's space and the memory gate permit, and without such a change the rule reports nothing.
docs/explanation/diagnosis.md describes each rule with its source.
"""
