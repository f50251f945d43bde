"""Rehearsals: a configuration built and stepped at a cluster's full number of ranks in one process without values, and
what that shows."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import MOST_RANKS, Cluster
from shardtune.api_schemas.names import ONE_LINE, ProgramOutput
from shardtune.api_schemas.strategies import TrialConfig

RehearsalCode = Literal[
    "misfit",
    "over_memory",
    "unsupported",
    "data_dependent",
    "memory",
    "time",
    "crashed",
    "error",
    "no_worker",
    "worker_ends",
    "quota_used_up",
    "cancelled",
    "run_failed",
    "suspect",
]
"""Code of the reason why a configuration is rejected, or was not rehearsed (built and stepped with fake tensors).
Rejected: `misfit`: the strategy rejects it on this cluster; `over_memory`: its tensors need more than a GPU may use.
Not rehearsed: `unsupported`: torch's fake process group or tensors without values do not support it; `data_dependent`:
the model's code reads values; `memory`, `time`: the rehearsing process reached its limit; `crashed`: the process ended
without a result; `error`: the code raised; `no_worker`: no live worker of a study can rehearse;
`worker_ends`: the worker must end before the rehearsal would; `quota_used_up`: the project's GPU-seconds of the day are used
up; `cancelled`: the user cancelled the study when its answer was known; `run_failed`: the rehearsal's run failed before it
reported; `suspect`: the reported figures contradict the task or each other. Studies of earlier versions have `no_worker` for
the three codes after it, too."""
REJECTIONS: tuple[RehearsalCode, ...] = ("misfit", "over_memory")
"""Codes of `RehearsalCode` which mean that the configuration cannot train on the cluster."""
_MOST_BYTES = 1 << 60
OneLine = Annotated[str, Field(pattern=ONE_LINE)]
"""Text without control characters."""
PartName = Annotated[str, Field(max_length=100, pattern=r"^[a-z_]+$")]
"""Name of a kind of tensors for which the peak memory is listed, such as `parameters`."""
_Seconds = Annotated[float, Field(ge=0, le=1e9)]

_FIELD = re.compile(r"^([a-z_][a-z_0-9.]*(?: × [a-z_][a-z_0-9.]*)*) \(([^()]{1,60})\)")
"""Regular expression for the beginning of a strategy's error message: the name of a field and its value in brackets,
such as `tensor_parallel (7)`."""


class RehearsalProblem(Schema):
    """Reason why a configuration cannot be built, or was not rehearsed (built and stepped with fake tensors)."""

    code: RehearsalCode
    field: OneLine | None = Field(default=None, max_length=200, examples=["tensor_parallel"])
    """Field of the configuration or workload at fault; null if the message does not name one."""
    value: OneLine | None = Field(default=None, max_length=200, examples=["7"])
    """Value of that field."""
    message: ProgramOutput = Field(max_length=2000)
    """Sentence for people that names the field, its value and the remedy."""

    @classmethod
    def misfit(cls, message: str) -> Self:
        """Return the problem (code `misfit`) of a configuration that the strategies' rules reject. `message` begins
        with the field and its value."""
        match = _FIELD.match(message)
        field, value = (match[1], match[2]) if match is not None else (None, None)
        return cls(code="misfit", field=field, value=value, message=message)


class RehearsedRank(Schema):
    """Memory and process groups of one rank of a configuration. A process that built the rank and stepped it with fake
    tensors reported them."""

    rank: int = Field(ge=0, le=MOST_RANKS)
    """Number of the rank, from 0, that a process built and stepped with fake tensors."""
    blocks: int = Field(ge=0, le=1 << 20)
    """Number of the model's repeated blocks (layers) that the rank holds."""
    peak_bytes: int = Field(ge=0, le=_MOST_BYTES)
    """Peak bytes of tensors during the second step."""
    parts: dict[PartName, Annotated[int, Field(ge=0, le=_MOST_BYTES)]] = Field(max_length=20)
    """Bytes of tensors at the peak (`peak_bytes`) by kind: `parameters`, `optimizer` states, `buffers`, what `forward`
    made (activations, gathered weights), what `backward` made (gradients, gathered weights, work space), and `other`
    tensors such as the batch."""
    process_groups: int = Field(ge=0, le=MOST_RANKS)
    """Number of process groups that the rank belongs to, the one of all ranks included; each is an NCCL communicator."""
    set_up_s: _Seconds
    """Seconds that the rank took to make its device mesh and to wrap the model, without any communication."""
    cpu_s: _Seconds
    """Seconds of CPU time that the whole process used, imports included."""
    peak_rss_mib: float = Field(ge=0, le=1e9)
    """Largest resident memory of the process in MiB."""


class RehearsalAnswer(Schema):
    """Result of one process of a rehearsal, which builds a configuration and steps it with fake tensors. Exactly one of
    `seen` (the figures) and `problem` is given."""

    seen: RehearsedRank | None = None
    """Figures of the rank that the process built and stepped with fake tensors; null if there is a problem."""
    problem: RehearsalProblem | None = None
    """Reason why the process did not build and step its rank; null if it did."""

    @model_validator(mode="after")
    def _has_one_answer(self) -> Self:
        if (self.seen is None) == (self.problem is None):
            raise ValueError("seen, problem: an answer carries exactly one of them")
        return self


class RehearsalReport(Schema):
    """Report of a study's rehearsal, in which processes build a configuration and step it with fake tensors. The
    rehearsal ends with the first process that has a problem."""

    answers: tuple[RehearsalAnswer, ...] = Field(min_length=1, max_length=8)
    """Results of the rehearsal's processes, in the order in which they ran. Only the last one may be a problem."""
    elapsed_s: _Seconds
    """Total seconds of the rehearsal's processes, which run one after the other."""


class Rehearsal(Schema):
    """Result of a rehearsal, which builds and steps a configuration with fake tensors at a cluster's full number of
    ranks, without a GPU and without timing."""

    cluster: Cluster
    ranks: int
    """Number of ranks that the rehearsal simulates by torch's fake process group."""
    global_batch: int
    """Samples per optimizer step."""
    config: TrialConfig
    """Configuration that was rehearsed."""
    description: str
    """Short description of the configuration."""
    builds: bool
    """Whether the configuration was built and took two training steps; otherwise `problem` says why not."""
    problem: RehearsalProblem | None = None
    """Reason why the configuration cannot be built, needs too much memory (`over_memory`), or was not rehearsed; null
    where it builds and fits."""
    allocated_gib: float | None = None
    """Peak memory of tensors in GiB: the largest among the ranks that were rehearsed, extrapolated to all blocks of the
    model; null if the rehearsal gave no figures."""
    predicted_gib: float | None = None
    """Predicted peak memory of tensors in GiB, to compare with the rehearsed `allocated_gib`; null if nothing can be
    predicted for the model."""
    available_gib: float | None = None
    """Memory in GiB that a GPU may use; null if the rehearsed peak was not compared with it."""
    above_prediction: float | None = Field(default=None, examples=[0.03])
    """Peak of tensors in the rehearsal divided by the predicted peak, minus 1: 0.03 means 3 % above the prediction. If
    null, one of the two is not known."""
    extended_from: tuple[int, ...] = ()
    """Numbers of blocks per rank with which the configuration was rehearsed. The peak of the full model is extrapolated
    from them on a straight line. If empty, the full model was rehearsed."""
    process_groups: int | None = None
    """Largest number of process groups (each an NCCL communicator) to which a rehearsed rank belongs."""
    set_up_s: float | None = None
    """Seconds that one rank takes to make its device meshes and to wrap the model, without communication, at the
    largest depth rehearsed."""
    seen: tuple[RehearsedRank, ...] = ()
    """Figures of each process of the rehearsal."""
    notes: tuple[str, ...] = ()
    """Sentences for people about what the rehearsal does not include, such as the CUDA context."""
