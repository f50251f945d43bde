"""Numbers of what `torch.compile` compiled in a run."""

from pydantic import Field

from shardtune.api_schemas.base import Schema

COMPILED_FRAMES_SINCE = 2
"""First protocol version whose workers count compiled frames."""
_MOST = 10**9


class CompiledFrames(Schema):
    """Numbers of what `torch.compile` (Dynamo) compiled on rank 0. A frame is one Python function with one set of
    assumptions (guards) about its arguments."""

    frames: int = Field(ge=0, le=_MOST)
    """Number of compiled frames. Equal blocks share them, so it does not grow with the number of blocks."""
    recompilations: int = Field(ge=0, le=_MOST)
    """Number of these frames that were compiled because an earlier one's guards did not hold."""
    graph_breaks: int = Field(ge=0, le=_MOST)
    """Number of places where Dynamo ended a graph because it could not compile what followed. Python runs there."""
    while_timed: int = Field(ge=0, le=_MOST)
    """Number of frames that were compiled during the timed steps, whose times then include the compilation."""
