"""Messages between agent and node agents: JSON lines through the engine's pipe.

Moments travel as seconds from now, since hosts share no clock; an answer has the number of its order.
"""

from typing import Annotated, Literal

from pydantic import Field, JsonValue, TypeAdapter

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.machines.hardware import Fingerprint, Inventory, MeasuredHardware
from shardtune.api_schemas.names import ProgramOutput
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.leases import Task
from shardtune.api_schemas.trials.measurements import Progress, RankReport
from shardtune.workers.launch import Launch

MAX_LINE_BYTES = 1 << 20
"""Largest size of a line in bytes."""

PortRange = tuple[int, int]
"""First and last port of a range."""


class Begin(Schema):
    """First message of the agent: the settings of the node agent, and how long it may live without an answer."""

    kind: Literal["begin"] = "begin"
    settings: dict[str, JsonValue]
    """Fields of `WorkerSettings` for this host."""
    environment: dict[str, str] = {}
    """Variables that the ranks get with the agent's values, even where the engine changed them."""
    without: tuple[str, ...] = ()
    """Variables of the engine that the agent does not have, so that the ranks do not get them."""
    lease_s: float = Field(gt=0)
    """Seconds that the node agent and its ranks may live after the last answered heartbeat."""


class NodeHeartbeatAnswer(Schema):
    """Answer to a heartbeat, which renews the node's lease."""

    kind: Literal["beat_answer"] = "beat_answer"
    beat: int
    """Number of the answered heartbeat."""
    lease_s: float
    """Seconds of the lease, counted from the sending of that heartbeat."""
    ranks_end_in_s: float | None = None
    """Seconds left of the agent's own lease, from the same moment; None while no ranks run."""


class PrepareOrder(Schema):
    """Order to get ready to launch: the fork server started, the GPUs healthy and free."""

    kind: Literal["prepare"] = "prepare"
    order: int
    looks: bool
    """Whether the answer must also contain the present fingerprint."""


class ListenOrder(Schema):
    """Order to listen on an address for a connection of one other node."""

    kind: Literal["listen"] = "listen"
    order: int
    address: str
    ports: PortRange | None


class ReachOrder(Schema):
    """Order to connect to an address on which another node listens."""

    kind: Literal["reach"] = "reach"
    order: int
    address: str
    port: int
    word: str
    """Random word that the listener sends, so that no other program is taken for it."""


class SharedOrder(Schema):
    """Order to write a word into a file, or to read it there, which shows whether the hosts share the folder."""

    kind: Literal["shared"] = "shared"
    order: int
    path: str
    writes: str | None = None
    """Word to write; None: read the file."""


class StageOrder(Schema):
    """Order to prepare the folder of a launch, and a store on the host of the rendezvous."""

    kind: Literal["stage"] = "stage"
    order: int
    # A pattern, since the node makes a folder of this name: no message may lead out of its work directory.
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)
    """Name of the trial directory."""
    task: Task | None
    """Task of the ranks; None where they measure the hardware."""
    fingerprint: Fingerprint
    resumes: bool = False
    """Whether the launch continues in the folder of the previous one."""
    meets: bool
    """Whether this host serves the store."""
    ports: PortRange | None = None
    """Ports for the store; None: any."""


class LaunchOrder(Schema):
    """Order to start this host's ranks of the staged launch."""

    kind: Literal["launch"] = "launch"
    order: int
    launch: Launch


class KillOrder(Schema):
    """Order to end the processes of the last launch, and to report the conditions since then."""

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
    """Address of a network interface that is up."""

    interface: str
    address: str


class NodeReady(Schema):
    """Description of a host, sent once it can work."""

    kind: Literal["ready"] = "ready"
    host: str
    inventory: Inventory
    isolation: str
    operators_built: bool | None = None
    addresses: tuple[NodeAddress, ...]
    """Addresses of the host; the loopback's is last."""
    code: dict[str, str] = {}
    """Digests of allowed scripts and entry points, by name."""


class NodeFailed(Schema):
    """Last message of a node agent that cannot work."""

    kind: Literal["failed"] = "failed"
    message: ProgramOutput = Field(max_length=8000)
    is_input: bool
    """Whether the settings are at fault, so that another start would fail, too."""


class NodeHeartbeat(Schema):
    """Heartbeat, sent once a second, with the progress of rank 0."""

    kind: Literal["beat"] = "beat"
    beat: int
    progress: Progress | None = None
    moved: int = 0
    """Counter that changes whenever a rank makes progress."""


class OrderDone(Schema):
    """Answer to an order: done, or the error."""

    kind: Literal["done"] = "done"
    order: int
    error: ProgramOutput | None = Field(default=None, max_length=8000)
    port: int | None = None
    word: str | None = None
    own: NodeAddress | None = None
    """Own address from which another node was reached."""
    fingerprint: Fingerprint | None = None


class LaunchRejected(Schema):
    """Report that the ranks cannot be started after all."""

    kind: Literal["rejected"] = "rejected"
    order: int
    """Number of the launch order."""
    reason: ProgramOutput = Field(max_length=8000)


class HelperLost(Schema):
    """Report that a helper of the host died during the launch, such as its fork server."""

    kind: Literal["helper_lost"] = "helper_lost"
    order: int
    """Number of the launch order."""
    message: ProgramOutput = Field(max_length=8000)


class RankEnded(Schema):
    """End of one rank, with the files that it wrote."""

    kind: Literal["rank_ended"] = "rank_ended"
    order: int
    """Number of its launch order."""
    rank: int
    code: int
    report: RankReport | None = None
    model_summary: ModelSummary | None = None
    measured: MeasuredHardware | None = None
    log_tail: ProgramOutput | None = None


class LaunchEnded(Schema):
    """Answer to a kill: no process of the launch lives on this host, except survivors of SIGKILL."""

    kind: Literal["over"] = "over"
    order: int
    survivors: str | None = None
    seen: Conditions = Conditions()
    """Conditions since the launch."""


NodeMessage = Annotated[
    NodeReady | NodeFailed | NodeHeartbeat | OrderDone | LaunchRejected | HelperLost | RankEnded | LaunchEnded,
    Field(discriminator="kind"),
]

_FROM_AGENT: TypeAdapter[AgentMessage] = TypeAdapter(AgentMessage)
_FROM_NODE: TypeAdapter[NodeMessage] = TypeAdapter(NodeMessage)


def to_line(message: Schema) -> bytes:
    """Encode a message as one line."""
    return message.model_dump_json().encode() + b"\n"


def from_agent(line: bytes) -> AgentMessage:
    """Decode a line from the agent.

    Raises:
        ValueError: the line is no message.
    """
    return _FROM_AGENT.validate_json(line)


def from_node(line: bytes) -> NodeMessage:
    """Decode a line from a node.

    Raises:
        ValueError: the line is no message.
    """
    return _FROM_NODE.validate_json(line)
