"""Diagnosis: finds causes of slow steps in the traces of a trial, and changes of knobs that would remove them."""
