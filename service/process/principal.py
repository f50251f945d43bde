"""Sender of a request: the holder of a key, or anybody on this machine while the service has no keys."""

from dataclasses import dataclass

from shardtune.api_schemas.access.keys import DEFAULT_PROJECT, Scope


@dataclass(frozen=True)
class Principal:
    """Identity and permissions of a request's sender."""

    name: str
    """Name of the key, for the history of decisions."""
    project_id: str | None = None
    """The only project that it sees; None: every project."""
    scopes: frozenset[Scope] = frozenset(Scope)
    key_id: str | None = None
    holder_id: str | None = None
    """Id that stays the same when a key is rotated; None: the service has no keys."""

    def sees(self, project_id: str | None) -> bool:
        """Whether the sender may see something of this project (None: of all projects)."""
        return self.project_id is None or project_id is None or self.project_id == project_id

    @property
    def sender(self) -> str:
        """Name under which the sender's requests queue: the keys of a project share one."""
        # By project, not by key: otherwise a project could get more slots by making more keys.
        return f"project {self.project_id}" if self.project_id is not None else f"key {self.key_id}"

    @property
    def home(self) -> str:
        """Project of objects that the sender creates without naming one."""
        return self.project_id or DEFAULT_PROJECT


LOCAL = Principal("local")
"""Sender while the service has no keys: anybody on this machine may do everything."""
