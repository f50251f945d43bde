"""Peak memory of one rank, term by term, for many candidates at once. Pure numpy; bytes unless a name says GiB."""

from shardtune.tuner.prediction.footprint.peak import MemoryTable
from shardtune.tuner.prediction.footprint.stages import peak_memory

__all__ = ["MemoryTable", "peak_memory"]
