"""What agent and node agents say to each other: JSON lines through the engine's pipe. Moments travel as seconds from now,
since hosts share no clock; an answer carries the number of its order.
"""

from typing import Annotated, Literal

from pydantic import Field, JsonValue, TypeAdapter

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.machines.hardware import Fingerprint, Inventory, MeasuredHardware
from shardtune.api_schemas.names import Said
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.leases import Task
from shardtune.api_schemas.trials.measurements import Progress, RankReport
from shardtune.workers.launch import Launch

MOST_BYTES = 1 << 20
"""Of one line."""

PortRange = tuple[int, int]
"""First and last."""


class Begin(Schema):
    """The agent's first line: what the node agent is to hold, and for how long without an answer."""

    kind: Literal["begin"] = "begin"
    settings: dict[str, JsonValue]
    """Fields of `WorkerSettings`, for this host."""
    environment: dict[str, str] = {}
    """Variables that the ranks get as the agent has them, whatever the engine made of them."""
    without: tuple[str, ...] = ()
    """Variables that the agent does not have, so that the ranks shall have none of the engine's."""
    lease_s: float = Field(gt=0)


class BeatAnswer(Schema):
    """The node may live on."""

    kind: Literal["beat_answer"] = "beat_answer"
    beat: int
    lease_s: float
    """From the sending of that beat."""
    ranks_end_in_s: float | None = None
    """What is left of the agent's own lease, from the same moment; None while no ranks run."""


class PrepareOrder(Schema):
    """Be ready to launch: the fork server warm, the GPUs whole and free."""

    kind: Literal["prepare"] = "prepare"
    order: int
    looks: bool
    """Say also what the fingerprint is by now."""


class ListenOrder(Schema):
    """Listen on an address for one other node to try it."""

    kind: Literal["listen"] = "listen"
    order: int
    address: str
    ports: PortRange | None


class ReachOrder(Schema):
    """Try to reach an address on which another node listens."""

    kind: Literal["reach"] = "reach"
    order: int
    address: str
    port: int
    word: str
    """What the listener says, so that nobody else is taken for it."""


class SharedOrder(Schema):
    """Write a word into a file, or read it there (None): to see whether the hosts share it."""

    kind: Literal["shared"] = "shared"
    order: int
    path: str
    writes: str | None = None


class StageOrder(Schema):
    """Make the folder of a launch ready, and on the host where the ranks meet a store."""

    kind: Literal["stage"] = "stage"
    order: int
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)
    """Of the trial directory."""
    task: Task | None
    """None where the ranks measure the hardware."""
    fingerprint: Fingerprint
    resumes: bool = False
    """In the folder of the launch before."""
    meets: bool
    ports: PortRange | None = None
    """For the store; None: any."""


class LaunchOrder(Schema):
    """Start this host's ranks of what was staged."""

    kind: Literal["launch"] = "launch"
    order: int
    launch: Launch


class KillOrder(Schema):
    """End what the last launch started, and say what was seen meanwhile."""

    kind: Literal["kill"] = "kill"
    order: int


AgentMessage = Annotated[
    Begin | BeatAnswer | PrepareOrder | ListenOrder | ReachOrder | SharedOrder | StageOrder | LaunchOrder | KillOrder,
    Field(discriminator="kind"),
]


class NodeAddress(Schema):
    """An address of a network interface that is up."""

    interface: str
    address: str


class NodeReady(Schema):
    """Everything the agent must know of a host."""

    kind: Literal["ready"] = "ready"
    host: str
    inventory: Inventory
    isolation: str
    operators_built: bool | None = None
    addresses: tuple[NodeAddress, ...]
    """The loopback's last."""
    code: dict[str, str] = {}
    """Allowed scripts and entry points, by what is in them."""


class NodeFailed(Schema):
    """The node agent ends, because it cannot work."""

    kind: Literal["failed"] = "failed"
    message: Said = Field(max_length=8000)
    is_input: bool
    """It was told something that cannot be."""


class Beat(Schema):
    """Once a second: still here, and how far rank 0 is."""

    kind: Literal["beat"] = "beat"
    beat: int
    progress: Progress | None = None
    moved: int = 0
    """Changes whenever a rank moved."""


class OrderDone(Schema):
    """An order was carried out, or why not."""

    kind: Literal["done"] = "done"
    order: int
    error: Said | None = Field(default=None, max_length=8000)
    port: int | None = None
    word: str | None = None
    own: NodeAddress | None = None
    """From which another node was reached."""
    fingerprint: Fingerprint | None = None


class LaunchRejected(Schema):
    """It turned out that the ranks cannot be started."""

    kind: Literal["rejected"] = "rejected"
    order: int
    """Of the launch."""
    reason: Said = Field(max_length=8000)


class HelperLost(Schema):
    """The host's own helper died under the ranks, such as its fork server."""

    kind: Literal["helper_lost"] = "helper_lost"
    order: int
    """Of the launch."""
    message: Said = Field(max_length=8000)


class RankEnded(Schema):
    """The end of one rank with what it left behind."""

    kind: Literal["rank_ended"] = "rank_ended"
    order: int
    """Of its launch."""
    rank: int
    code: int
    report: RankReport | None = None
    model_summary: ModelSummary | None = None
    measured: MeasuredHardware | None = None
    log_tail: Said | None = None


class LaunchOver(Schema):
    """Nothing of the launch lives on this host, but what survived SIGKILL: the answer to a kill."""

    kind: Literal["over"] = "over"
    order: int
    survivors: str | None = None
    seen: Conditions = Conditions()
    """Since the launch."""


NodeMessage = Annotated[
    NodeReady | NodeFailed | Beat | OrderDone | LaunchRejected | HelperLost | RankEnded | LaunchOver,
    Field(discriminator="kind"),
]

_FROM_AGENT: TypeAdapter[AgentMessage] = TypeAdapter(AgentMessage)
_FROM_NODE: TypeAdapter[NodeMessage] = TypeAdapter(NodeMessage)


def to_line(message: Schema) -> bytes:
    """One line."""
    return message.model_dump_json().encode() + b"\n"


def from_agent(line: bytes) -> AgentMessage:
    """Read a line of the agent's.

    Raises:
        ValueError: it is none.
    """
    return _FROM_AGENT.validate_json(line)


def from_node(line: bytes) -> NodeMessage:
    """Read a line of a node's.

    Raises:
        ValueError: it is none.
    """
    return _FROM_NODE.validate_json(line)
