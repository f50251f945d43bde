"""Peak memory of one rank, term by term, for many candidates at once. Pure numpy; bytes unless a name says GiB."""

from shardtune.tuner.prediction.footprint.candidates import Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.footprint.peak import MemoryTable, peak_memory

__all__ = ["Candidates", "Dtypes", "Implementation", "MemoryTable", "peak_memory"]
