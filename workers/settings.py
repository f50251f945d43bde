"""How one worker agent runs: from the command line, then `SHARDTUNE_WORKER_*` environment variables, then defaults."""

import platform
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class WorkerSettings(BaseSettings):
    """Settings of one agent; each may be given as `SHARDTUNE_WORKER_<NAME>`."""

    model_config = SettingsConfigDict(env_prefix="SHARDTUNE_WORKER_", frozen=True, extra="forbid")

    service: str = "http://127.0.0.1:8470"
    """Base URL of the service."""
    work_dir: Path = Path(".shardtune/worker")
    """Trial directories, logs and, for CPU ranks, the lock that keeps a second agent out."""
    name: str | None = None
    """Stable name of this resource pool. Default: host name and work directory."""
    ranks: int | None = Field(default=None, ge=1, le=1024)
    """Ranks of a trial. Default: every visible GPU, or 2 CPU ranks where there is no GPU."""
    memory_gib: float | None = Field(default=None, gt=0)
    """Declared memory of one CPU rank. Default: its share of the host's memory. GPUs say theirs themselves."""
    cold: bool = False
    """Start one interpreter per rank instead of forking ranks from a warm host: slower, nothing shared."""
    keep_trials: int = Field(default=20, ge=0)
    """Newest trial directories of successful runs that are kept."""
    keep_failed: int = Field(default=200, ge=0)
    """Newest trial directories of failed runs that are kept."""
    min_free_gib: float = Field(default=1.0, ge=0)
    """A run is refused (`setup`) when the work directory's disk has less than this."""
    host_ready_s: float = Field(default=600, gt=0)
    """How long the warm host may import torch, deepspeed and transformers."""
    build_operators: bool = True
    """Build DeepSpeed's CPU Adam (a minute, then cached) before work is taken. Without, the first trial that offloads
    its optimizer does."""

    @property
    def pool_name(self) -> str:
        """The name the service knows this worker by; the same after a restart."""
        return (self.name or f"{platform.node()}:{self.work_dir.resolve()}")[-200:]
