"""Rehearsals: a configuration built and stepped at a cluster's full number of ranks in one process without values, and
what that shows."""

import re
from typing import Literal, Self

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.leases import TrialTask

RehearsalCode = Literal["misfit", "unsupported", "data_dependent", "memory", "time", "crashed", "error"]
"""Reason why a configuration was not rehearsed: `misfit`: the strategy rejects it on this cluster; `unsupported`: torch's
fake process group or tensors without values cannot carry it; `data_dependent`: the model's code reads values; `memory`,
`time`: the rehearsing process reached its limit; `crashed`: it ended without an answer; `error`: the code raised."""

_FIELD = re.compile(r"^([a-z_][a-z_0-9.]*(?: × [a-z_][a-z_0-9.]*)*) \(([^()]{1,60})\)")
"""Beginning of an error of the strategies: field and value."""


class RehearsalTask(Schema):
    """Task of one rehearsing process: build and step one rank of a trial, at the number of blocks of its model."""

    trial: TrialTask
    """Trial to rehearse; its cluster gives the number of ranks."""
    rank: int = Field(default=0, ge=0)
    """Rank that is rehearsed; the others exist by their number alone."""
    micro_batches: int = Field(default=1, ge=1)
    """Number of micro batches of each step, enough to reach the peak of a whole step."""


class RehearsalProblem(Schema):
    """Reason why a configuration cannot be built, or was not rehearsed."""

    code: RehearsalCode
    field: str | None = Field(default=None, examples=["tensor_parallel"])
    """Field of the configuration or workload at fault, where the message names one."""
    value: str | None = Field(default=None, examples=["7"])
    """Value of that field."""
    message: str
    """Sentence with field, value and remedy, for people."""

    @classmethod
    def misfit(cls, message: str) -> Self:
        """Problem of a configuration that the strategies' rules reject, whose message begins with field and value."""
        match = _FIELD.match(message)
        field, value = (match[1], match[2]) if match is not None else (None, None)
        return cls(code="misfit", field=field, value=value, message=message)


class RehearsedRank(Schema):
    """Figures of one rank from one rehearsing process."""

    rank: int
    blocks: int
    """Number of repeated blocks on the rank."""
    peak_bytes: int
    """Largest number of bytes of tensors during the second step."""
    parts: dict[str, int]
    """Bytes of that peak by kind: `parameters`, `optimizer` states, `buffers`, what `forward` made (activations, gathered
    weights), what `backward` made (gradients, gathered weights, work space), and `other` tensors such as the batch."""
    process_groups: int
    """Number of process groups that the rank belongs to, the one of all ranks included; each is an NCCL communicator."""
    set_up_s: float
    """Seconds to make the mesh and to wrap the model, without any communication."""
    cpu_s: float
    """Seconds of processor time of the whole process, imports included."""
    peak_rss_mib: float
    """Largest resident memory of the process in MiB."""


class RehearsalAnswer(Schema):
    """Answer of one rehearsing process: exactly one of `seen` and `problem`."""

    seen: RehearsedRank | None = None
    problem: RehearsalProblem | None = None


class Rehearsal(Schema):
    """Rehearsal of a configuration at a cluster's full number of ranks: nothing ran on a GPU, and nothing was timed."""

    cluster: Cluster
    ranks: int
    """Number of ranks of the fake process group."""
    global_batch: int
    """Samples per optimizer step."""
    config: TrialConfig
    """Configuration that was rehearsed."""
    description: str
    """Short description of the configuration."""
    builds: bool
    """Whether the configuration was built and stepped twice; otherwise `problem` says why not."""
    problem: RehearsalProblem | None = None
    """Reason why it cannot be built or was not rehearsed; null where it builds."""
    allocated_gib: float | None = None
    """Peak of the tensors of the fullest rehearsed rank in GiB, at the model's own depth; null without a rehearsal."""
    predicted_gib: float | None = None
    """Predicted peak of the same tensors in GiB; null where nothing is predicted for the model."""
    above_prediction: float | None = Field(default=None, examples=[0.03])
    """Rehearsed peak over the predicted peak, minus 1."""
    extended_from: tuple[int, ...] = ()
    """Numbers of blocks on a rank at which it was rehearsed, and from which a straight line leads to the model's depth;
    empty: rehearsed at its own depth."""
    process_groups: int | None = None
    """Largest number of process groups of a rehearsed rank."""
    set_up_s: float | None = None
    """Seconds to make meshes and to wrap the model on one rank of the largest rehearsed depth, without communication."""
    seen: tuple[RehearsedRank, ...] = ()
    """Figures of each rehearsing process."""
    notes: tuple[str, ...] = ()
    """Limits of the rehearsal, for people."""
