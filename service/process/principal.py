"""Who makes a request: a key's holder, or anybody on this machine while the service has no keys."""

from dataclasses import dataclass

from shardtune.api_schemas.access.keys import DEFAULT_PROJECT, Scope


@dataclass(frozen=True)
class Principal:
    """What a request may see and do."""

    name: str
    """For the history of decisions."""
    project_id: str | None = None
    """The only project it sees; None: every one."""
    scopes: frozenset[Scope] = frozenset(Scope)
    key_id: str | None = None
    holder_id: str | None = None
    """The same for all keys that replaced each other; None: there are no keys."""

    def sees(self, project_id: str | None) -> bool:
        """Whether something of this project (None: of all) is its business."""
        return self.project_id is None or project_id is None or self.project_id == project_id

    @property
    def sender(self) -> str:
        """Whose turn its requests take: a project's keys share one."""
        return f"project {self.project_id}" if self.project_id is not None else f"key {self.key_id}"

    @property
    def home(self) -> str:
        """Project of what it creates without naming one."""
        return self.project_id or DEFAULT_PROJECT


LOCAL = Principal("local")
"""While there are no keys: anybody on this machine may do everything."""
