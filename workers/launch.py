"""Launch: order to start some or all ranks of a trial by one launcher, with their variables. Sent to the fork server
and to other hosts."""

import socket
from typing import Literal

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.workers.clock import now_s

Program = Literal["trial", "hardware"]
"""Program that the ranks run: `trial` is the task of a trial directory, `hardware` the measurement of the hardware's
rates."""

LAUNCHED = "SHARDTUNE_LAUNCHED_S"
"""Environment variable with the time at which this host received the order to start the ranks, on its own clock
(`clock.now_s`)."""
RESUMES = "SHARDTUNE_RESUMES"
"""Environment variable that is set to 1 if the ranks continue from the checkpoint that an earlier launch saved."""
CHECKPOINT = "SHARDTUNE_CHECKPOINT"
"""Environment variable with the folder for the checkpoint of a resume check; not set if the checkpoint is in the trial
directory."""
ANY_PORT = range(1)
"""Port range with the single entry 0, which lets the kernel choose a free port for the rendezvous store."""


class Launch(Schema):
    """Order to start the ranks `first_rank` to `first_rank + ranks - 1` of a trial that has `world_size` ranks in all.
    On a single host these are all ranks."""

    first_rank: int = Field(default=0, ge=0)
    ranks: int = Field(ge=1)
    """Number of ranks that this launcher starts on its host."""
    world_size: int = Field(ge=1)
    environment: dict[str, str] = {}
    """Additional environment variables of the ranks, such as those for the rendezvous of several hosts."""
    program: Program = "trial"
    resumes: bool = False
    """Whether this is the second launch of a resume check, which loads the checkpoint that the first launch saved."""
    checkpoint: str | None = None
    """Folder, visible to every host, for the checkpoint of a resume check; None if the checkpoint is in the trial
    directory."""

    @classmethod
    def of(cls, world_size: int, program: Program = "trial", checkpoint: str | None = None) -> "Launch":
        """Order to start all ranks of a trial."""
        return cls(ranks=world_size, world_size=world_size, program=program, checkpoint=checkpoint)

    def part(self, first_rank: int, ranks: int, environment: dict[str, str]) -> "Launch":
        """Part of this launch order that concerns the ranks of one host."""
        variables = {**self.environment, **environment}
        return self.model_copy(update={"first_rank": first_rank, "ranks": ranks, "environment": variables})

    @property
    def has_rendezvous(self) -> bool:
        """Whether the launch already names an address at which its ranks meet."""
        return "MASTER_ADDR" in self.environment

    def started(self) -> "Launch":
        """Copy of the launch with the present time as its start. If it names no address at which the ranks meet, one on
        this host is added."""
        defaults = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), LAUNCHED: str(now_s())}
        return self.model_copy(update={"environment": {**defaults, **self.environment}})

    def variables(self, local_rank: int) -> dict[str, str]:
        """Environment variables that torchrun would set for a rank, and further ones that only Shardtune's own rank programs
        read."""
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
    """Environment variables that tell ranks on several hosts where to meet, named as in torchelastic."""
    # TORCHELASTIC_USE_AGENT_STORE: ranks that join by `env://` are clients of the store, also rank 0, which would else
    # serve one.
    return {"MASTER_ADDR": address, "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
