"""What an installer would bring here, by the metadata of the installed packages."""

from importlib.metadata import requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def brought_by(requirements: list[str]) -> set[str]:
    """Names of the packages that an installer would bring here for these requirements."""
    names, waiting = set[str](), [(Requirement(line), frozenset[str]()) for line in requirements]
    while waiting:
        requirement, extras = waiting.pop()
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras or {""}):
            continue
        name = canonicalize_name(requirement.name)
        if name not in names:
            names.add(name)
            waiting += [(Requirement(line), frozenset(requirement.extras)) for line in requires(name) or ()]
    return names
