"""Messages between agent and node agents: JSON lines through the engine's pipe.

Times are sent as seconds from now, since hosts share no clock; an answer has the number of its order.
"""

from typing import Annotated, Literal

from pydantic import Field, JsonValue, TypeAdapter

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.machines.hardware import Fingerprint, Inventory, MeasuredHardware
from shardtune.api_schemas.names import ProgramOutput
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.leases import Task
from shardtune.api_schemas.trials.progress import Progress
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.api_schemas.trials.rehearsals import RehearsalReport
from shardtune.workers.launch import Launch

MAX_LINE_BYTES = 1 << 20
"""Maximum size in bytes of one message, which is sent as one line of JSON."""

PortRange = tuple[int, int]
"""First and last port of a port range."""


class Begin(Schema):
    """First message from the agent to a node agent: its settings, and how long it may live if its heartbeats are not
    answered."""

    kind: Literal["begin"] = "begin"
    settings: dict[str, JsonValue]
    """Fields of `WorkerSettings` for the node agent's host."""
    environment: dict[str, str] = {}
    """Environment variables of the agent that the ranks on this host get with the same values, even if the engine (such
    as Slurm) has changed them on the host."""
    without: tuple[str, ...] = ()
    """Names of environment variables that only the engine (such as Slurm) sets on the host; the ranks do not get these
    variables."""
    lease_s: float = Field(gt=0)
    """Seconds that the node agent and its ranks may live after the last answered heartbeat."""


class NodeHeartbeatAnswer(Schema):
    """Answer of the agent to a node agent's heartbeat, which renews the node agent's lease."""

    kind: Literal["beat_answer"] = "beat_answer"
    beat: int
    """Number of the answered heartbeat."""
    lease_s: float
    """Seconds for which the node agent's lease is renewed, counted from the moment at which the node agent sent the
    answered heartbeat."""
    ranks_end_in_s: float | None = None
    """Seconds left of the agent's own lease with the service, counted from the moment at which the node agent sent the
    answered heartbeat; None while no ranks run."""


class PrepareOrder(Schema):
    """Order to a node agent to get ready to launch: to start the fork server, and to wait until the GPUs are healthy and
    free."""

    kind: Literal["prepare"] = "prepare"
    order: int
    needs_fingerprint: bool
    """Whether the answer must also contain the host's present fingerprint (hardware and software versions)."""


class ListenOrder(Schema):
    """Order to a node agent to listen on an address for a connection from one other host."""

    kind: Literal["listen"] = "listen"
    order: int
    address: str
    ports: PortRange | None


class ReachOrder(Schema):
    """Order to a node agent to connect to an address on which another host listens."""

    kind: Literal["reach"] = "reach"
    order: int
    address: str
    port: int
    word: str
    """Random word that the listening host sends to whoever connects, so that no other program is mistaken for it."""


class SharedOrder(Schema):
    """Order to a node agent to write a word into a file, or to read the file. It checks whether the hosts share a
    folder."""

    kind: Literal["shared"] = "shared"
    order: int
    path: str
    writes: str | None = None
    """Word that the node agent writes into the file; None if it must read the file instead."""


class StageOrder(Schema):
    """Order to a node agent to prepare the folder of a launch. On the host where the ranks meet, it also starts the
    rendezvous store, through which they find each other."""

    kind: Literal["stage"] = "stage"
    order: int
    # A pattern, since the node makes a folder of this name: no message may lead out of its work directory.
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)
    """Name of the folder that the node agent makes for the launch."""
    task: Task | None
    """Task that the ranks of the launch run; None if they measure the hardware."""
    fingerprint: Fingerprint
    resumes: bool = False
    """Whether the launch continues in the folder of the previous one, as the second launch of a resume check does."""
    store_address: str | None = Field(default=None, max_length=64)
    """Address of this host at which it serves the rendezvous store; None if another host serves it, or none."""
    ports: PortRange | None = None
    """First and last port that the rendezvous store may use; None means any port."""


class LaunchOrder(Schema):
    """Order to a node agent to start its host's ranks for the launch that it has prepared before."""

    kind: Literal["launch"] = "launch"
    order: int
    launch: Launch


class KillOrder(Schema):
    """Order to a node agent to end the processes of the last launch, and to report the host's load and throttling since
    that launch began."""

    kind: Literal["kill"] = "kill"
    order: int


AgentMessage = Annotated[
    Begin
    | NodeHeartbeatAnswer
    | PrepareOrder
    | ListenOrder
    | ReachOrder
    | SharedOrder
    | StageOrder
    | LaunchOrder
    | KillOrder,
    Field(discriminator="kind"),
]


class NodeAddress(Schema):
    """Address of one of a host's network interfaces that is up."""

    interface: str
    address: str


class NodeReady(Schema):
    """Description of a host, sent by its node agent once the host can run trials."""

    kind: Literal["ready"] = "ready"
    host: str
    inventory: Inventory
    isolation: str
    operators_built: bool | None = None
    addresses: tuple[NodeAddress, ...]
    """Network addresses of the host; the loopback address is last."""
    code: dict[str, str] = {}
    """Digests of the user's allowed scripts and entry points on the host, by name."""


class NodeFailed(Schema):
    """Last message of a node agent whose host cannot run trials, with the reason."""

    kind: Literal["failed"] = "failed"
    message: ProgramOutput = Field(max_length=8000)
    is_input: bool
    """Whether the node agent's settings are at fault, so that starting it again would fail, too."""


class NodeHeartbeat(Schema):
    """Heartbeat of a node agent, sent once a second, with the progress of rank 0."""

    kind: Literal["beat"] = "beat"
    beat: int
    progress: Progress | None = None
    moved: int = 0
    """Counter that changes whenever any rank of the host makes progress."""


class OrderDone(Schema):
    """Answer of a node agent to an order: the order was carried out, or the error that prevented it."""

    kind: Literal["done"] = "done"
    order: int
    error: ProgramOutput | None = Field(default=None, max_length=8000)
    port: int | None = None
    word: str | None = None
    source_address: NodeAddress | None = None
    """Address of the node agent's own host in a connection to another host; None in answers to other orders."""
    fingerprint: Fingerprint | None = None


class LaunchRejected(Schema):
    """Report of a node agent that the ranks of a launch could not be started."""

    kind: Literal["rejected"] = "rejected"
    order: int
    """Number of the launch order."""
    reason: ProgramOutput = Field(max_length=8000)


class HelperLost(Schema):
    """Report of a node agent that a helper process of its host died during the launch, such as the fork server."""

    kind: Literal["helper_lost"] = "helper_lost"
    order: int
    """Number of the launch order."""
    message: ProgramOutput = Field(max_length=8000)


class RankEnded(Schema):
    """Report of the end of one rank, with the files that the rank wrote."""

    kind: Literal["rank_ended"] = "rank_ended"
    order: int
    """Number of the order with which the agent launched this rank."""
    rank: int
    code: int
    report: RankReport | None = None
    model_summary: ModelSummary | None = None
    rehearsal: RehearsalReport | None = None
    measured: MeasuredHardware | None = None
    log_tail: ProgramOutput | None = None


class LaunchEnded(Schema):
    """Answer of a node agent to a kill order. No process of the launch is alive on the host any more, except those that
    survived SIGKILL."""

    kind: Literal["over"] = "over"
    order: int
    survivors: str | None = None
    conditions: Conditions = Conditions()
    """Conditions on the host since the ranks were launched, such as other programs' CPU use and throttling."""


NodeMessage = Annotated[
    NodeReady | NodeFailed | NodeHeartbeat | OrderDone | LaunchRejected | HelperLost | RankEnded | LaunchEnded,
    Field(discriminator="kind"),
]

_FROM_AGENT: TypeAdapter[AgentMessage] = TypeAdapter(AgentMessage)
_FROM_NODE: TypeAdapter[NodeMessage] = TypeAdapter(NodeMessage)


def to_line(message: Schema) -> bytes:
    """Encode a message as one JSON line."""
    return message.model_dump_json().encode() + b"\n"


def from_agent(line: bytes) -> AgentMessage:
    """Decode a JSON line from the agent into a message.

    Raises:
        ValueError: the line is no message.
    """
    return _FROM_AGENT.validate_json(line)


def from_node(line: bytes) -> NodeMessage:
    """Decode a JSON line from a node agent into a message.

    Raises:
        ValueError: the line is no message.
    """
    return _FROM_NODE.validate_json(line)
