"""Faults under a gang, on a laboratory's hosts: time until its ranks are gone and until that is reported, and that
studies finish."""
