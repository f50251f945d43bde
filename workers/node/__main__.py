"""Node agent: `python -m shardtune.workers.node`, started by an engine and ordered by the agent through standard input
and output.

Exit codes: 0 the agent has ended it or is gone; 1 this host cannot work; 2 the agent's settings are invalid.
"""

import os
import signal
import sys
from collections.abc import Callable

from shardtune.api_schemas import log_lines
from shardtune.workers.gang.messages import Begin, NodeFailed
from shardtune.workers.launchers.base import LaunchFailed, RanksAlive
from shardtune.workers.machine.device_lock import DevicesBusy
from shardtune.workers.machine.device_watch import DevicesUnfit
from shardtune.workers.machine.inventory import DetectionFailed
from shardtune.workers.node.agent_line import AgentConnection
from shardtune.workers.node.serve import serve
from shardtune.workers.trial_dir import DiskFull

DONE, CANNOT_WORK, BAD_INPUT = 0, 1, 2


def main(serve: Callable[[Begin, AgentConnection], None] = serve) -> int:
    """Run the node agent, which carries out the orders of the agent at the other end of the pipe; returns the exit
    code."""
    # Ignored: an engine signals every process of a job at once, but the agent orders the end. Otherwise a lost host and a
    # job that was told to stop would look the same.
    for number in (signal.SIGTERM, signal.SIGINT):
        # An empty handler, not SIG_IGN, which children would inherit.
        signal.signal(number, lambda *_: None)
    outgoing = os.dup(1)
    # Libraries print; only messages may reach the agent.
    os.dup2(2, 1)
    log_lines.configure("INFO")
    line = AgentConnection(sys.stdin.buffer, outgoing)
    try:
        begin = line.read_first()
        if begin is None:
            return DONE
        line.start(begin.lease_s)
        serve(begin, line)
    except (ValueError, FileNotFoundError, PermissionError) as error:
        line.send(NodeFailed(message=str(error)[:8000], is_input=True))
        return BAD_INPUT
    except (DetectionFailed, DevicesBusy, DevicesUnfit, DiskFull, LaunchFailed, RanksAlive) as error:
        line.send(NodeFailed(message=str(error)[:8000], is_input=False))
        return CANNOT_WORK
    return DONE


if __name__ == "__main__":
    sys.exit(main())
