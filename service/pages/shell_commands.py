"""Shell commands that pages offer to copy: they name this service as the browser knows it, and a key file if the service
requires API keys."""

import shlex
from dataclasses import dataclass

KEY_FILE = "KEY_FILE"
"""Name that stands for the path of a key file in a command: the service does not know where users keep their keys."""


@dataclass(frozen=True)
class ServiceCommands:
    """Builder of commands that ask this service.

    `origin`: URL of the service without a path, as the browser's request has it. `requires_key`: whether the service
    rejects requests without an API key.
    """

    origin: str
    requires_key: bool

    @property
    def worker(self) -> str:
        """Command that starts a worker of this service."""
        # The worker has no option for its key file: it takes the key out of the environment before it starts ranks.
        key = f"SHARDTUNE_API_KEY_FILE={KEY_FILE} " if self.requires_key else ""
        return f"{key}shardtune worker --service {shlex.quote(self.origin)}"

    def complete(self, command: str) -> str:
        """Return a command of the command line, with the options that name this service and the key file."""
        key = f" --key-file {KEY_FILE}" if self.requires_key else ""
        return f"{command} --service {shlex.quote(self.origin)}{key}"
