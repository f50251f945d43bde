"""Sender of a request: the holder of an API key, or anybody on this machine while the service has no keys."""

from dataclasses import dataclass

from shardtune.api_schemas.access.keys import DEFAULT_PROJECT, Scope


@dataclass(frozen=True)
class Principal:
    """Identity and permissions of a request's sender."""

    name: str
    """Name of the sender's API key, stored in the history of decisions."""
    project_id: str | None = None
    """Id of the only project that the sender can access; None means every project."""
    scopes: frozenset[Scope] = frozenset(Scope)
    key_id: str | None = None
    holder_id: str | None = None
    """Id of the key's holder, which stays the same when the key is rotated. None if the service has no keys."""
    is_own_client: bool = False
    """Whether the sender is the command that started this service for its own use (such as `shardtune tune`), or that
    command's worker.
    """

    def sees(self, project_id: str | None) -> bool:
        """Whether the sender can access objects of this project. None stands for objects that belong to every
        project.
        """
        return self.project_id is None or project_id is None or self.project_id == project_id

    @property
    def sender(self) -> str:
        """Name of the queue in which the sender's requests wait; all keys of a project share one queue."""
        # By project, not by key: otherwise a project could get more slots by making more keys.
        return f"project {self.project_id}" if self.project_id is not None else f"key {self.key_id}"

    @property
    def home(self) -> str:
        """Id of the project to which new objects belong if the sender names none."""
        return self.project_id or DEFAULT_PROJECT


LOCAL = Principal("local")
"""Sender of all requests (identity and permissions) while the service has no API keys: anybody on this machine may do
everything.
"""
OWN_CLIENT = Principal("local", is_own_client=True)
"""Sender of requests (identity and permissions) for the command that started this service for its own use, such as
`shardtune tune` or `best`. It applies whether or not API keys exist.
"""
