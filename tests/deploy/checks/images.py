"""References of images: one of a registry names a version or, better, a digest; `deploy/pin-images.sh` writes digests."""

import re
from collections.abc import Iterator
from pathlib import Path

_LINE = re.compile(r"^\s*(?:-\s+)?(?:image:|ARG BASE=|FROM)\s*[\"']?([^\s\"']+)", re.MULTILINE)
_REGISTRY = re.compile(r"^[a-z0-9-]+(?:\.[a-z0-9-]+)+(?::\d+)?/")
_REPOSITORY = r"[a-z0-9-]+(?:\.[a-z0-9-]+)+(?::\d+)?(?:/[a-z0-9._-]+)+"
_PINNED = re.compile(rf"{_REPOSITORY}(?::[A-Za-z0-9_][A-Za-z0-9._-]*)?@sha256:[0-9a-f]{{64}}")
_VERSIONED = re.compile(rf"{_REPOSITORY}:(?!latest$)[A-Za-z0-9_][A-Za-z0-9._-]*")


def images(deploy: Path) -> list[str]:
    """Check that no reference follows whatever its registry calls the latest, and that a digest is whole."""
    return [
        f"{path.relative_to(deploy)}: image ({image}) must name a version or a digest; write NAME:VERSION@sha256:…"
        for path, image in _references(deploy)
        if not (_PINNED.fullmatch(image) or _VERSIONED.fullmatch(image))
    ]


def _references(deploy: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(deploy.rglob("*")):
        if path.suffix in (".yaml", ".yml", ".Containerfile"):
            for image in _LINE.findall(path.read_text()):
                # Our own images, stages of a build and templates' expressions have no registry.
                if _REGISTRY.match(image):
                    yield path, image
