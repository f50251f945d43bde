"""Numbers of what `torch.compile` compiled in a run, and their words."""

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.formatting import counted

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
    """Number of frames that were compiled during the timed steps, whose times then include the compilation. Steps of the
    warm-up are left out, also where their times count."""


def compilation_details(compiled: CompiledFrames) -> str:
    """Say what compilation may have cost a run: `1 of them again; 2 graph breaks`."""
    again = f"{compiled.recompilations} of them again" if compiled.recompilations else "none again"
    breaks = counted(compiled.graph_breaks, "graph break") if compiled.graph_breaks else "no graph break"
    timed = [f"{compiled.while_timed} during the timed steps"] if compiled.while_timed else []
    return "; ".join((again, breaks, *timed))
