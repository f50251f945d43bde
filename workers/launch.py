"""What one launcher starts of a trial: some or all of its ranks, and what they are told. Crosses to the fork server, and to other hosts."""

import socket
from typing import Literal

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.workers.clock import now_s

Program = Literal["trial", "hardware"]
"""What the ranks run: the task of a trial directory, or the measurement of what the hardware reaches."""

LAUNCHED = "SHARDTUNE_LAUNCHED_S"
"""Environment variable: when this host was told to start the ranks, on its own clock (`clock.now_s`)."""
RESUMES = "SHARDTUNE_RESUMES"
"""Environment variable: set to 1 where the ranks go on from the checkpoint that an earlier launch saved."""
CHECKPOINT = "SHARDTUNE_CHECKPOINT"
"""Environment variable: the folder of that checkpoint, where it is not in the trial directory."""
ANY_PORT = range(1)
"""For a store: the kernel chooses."""


class Launch(Schema):
    """Ranks `first_rank` … `first_rank + ranks - 1` of a trial of `world_size`; a host that is alone starts all of them."""

    first_rank: int = Field(default=0, ge=0)
    ranks: int = Field(ge=1)
    """That this launcher starts; on one host they are its local ranks."""
    world_size: int = Field(ge=1)
    environment: dict[str, str] = {}
    """Beside the launcher's own, such as where the ranks of several hosts meet."""
    program: Program = "trial"
    resumes: bool = False
    """The second launch of a resume check: load what the first one saved."""
    checkpoint: str | None = None
    """Folder for what a resume check saves, which every host sees; None: the trial directory's own."""

    @classmethod
    def of(cls, world_size: int, program: Program = "trial", checkpoint: str | None = None) -> "Launch":
        """All ranks of a trial."""
        return cls(ranks=world_size, world_size=world_size, program=program, checkpoint=checkpoint)

    def share(self, first_rank: int, ranks: int, environment: dict[str, str]) -> "Launch":
        """One host's part of it."""
        given = {**self.environment, **environment}
        return self.model_copy(update={"first_rank": first_rank, "ranks": ranks, "environment": given})

    def begun(self) -> "Launch":
        """As of now on this host: the ranks know the moment, and meet here unless they were told where."""
        here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), LAUNCHED: str(now_s())}
        return self.model_copy(update={"environment": {**here, **self.environment}})

    def variables(self, local_rank: int) -> dict[str, str]:
        """What torchrun would set for a rank, and what ours are told beside."""
        return {
            **self.environment,
            **({RESUMES: "1"} if self.resumes else {}),
            **({} if self.checkpoint is None else {CHECKPOINT: self.checkpoint}),
            "RANK": str(self.first_rank + local_rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.ranks),
        }


def rendezvous(address: str, port: int) -> dict[str, str]:
    """Where ranks of several hosts meet, in torchelastic's words: what joins by `env://` is a client of that store, also its rank 0."""
    return {"MASTER_ADDR": address, "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
