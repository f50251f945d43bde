"""Verdict of a study: parity, final comparison, paired test and resume check. `tuner.search` proposes the
configurations."""
