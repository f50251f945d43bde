"""One folder per laboratory: claimed before anything is made, and enough to find everything when its maker was killed."""

import json
import os
import shutil
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

import psutil

from shardtune.api_schemas.machines.engines import EngineName

ROOT = Path("/run/shardtune-lab")
MARK = "SHARDTUNE_LAB"
"""Environment variable of every process of a laboratory: its folder."""
_MOST = 250

Engine = Literal["none", EngineName]


@dataclass(frozen=True)
class Plan:
    """Plan of a laboratory."""

    hosts: int = 2
    ranks: int = 2
    """Ranks per host, as the engine and callers are told."""
    inter_mbit: int = 0
    """Bandwidth of each host's link in each direction, in Mbit/s; 0: unlimited."""
    engine: Engine = "none"
    owner: tuple[int, float] | None = None
    """Process (id, start) with which the laboratory is over, where it belongs to one."""
    is_quiet: bool = False
    """Whether no host sees load of the machine that they share, as hosts of their own would see none of each other."""


class NoLaboratory(Exception):
    """The laboratory that was asked for is not up, or is up already."""


@dataclass(frozen=True)
class Claim:
    """A number nobody else has, and the folder that goes with it."""

    number: int
    plan: Plan

    @property
    def folder(self) -> Path:
        return folder_of(self.number)

    @property
    def shared(self) -> Path:
        """A folder that every host sees, as a shared file system."""
        return self.folder / "shared"

    def release(self) -> None:
        """Let others have the number."""
        shutil.rmtree(self.folder)


def folder_of(number: int) -> Path:
    return ROOT / str(number)


def claim(plan: Plan, number: int | None) -> Claim:
    """Take that number, or the first that is free from 1 on.

    Raises:
        NoLaboratory: the number is taken.
    """
    ROOT.mkdir(exist_ok=True)
    for attempt in range(1, _MOST) if number is None else (number,):
        try:
            folder_of(attempt).mkdir()
        except FileExistsError:
            continue
        (folder_of(attempt) / "shared").mkdir()
        (folder_of(attempt) / "plan.json").write_text(json.dumps(asdict(plan)))
        return Claim(attempt, plan)
    raise NoLaboratory(
        f"laboratory {number} is up already: `python -m tests.lab down`, or another number with --lab"
        if number is not None
        else f"all {_MOST - 1} laboratories are taken: see {ROOT}"
    )


def find(number: int) -> Claim:
    """The claim of a laboratory that was begun.

    Raises:
        NoLaboratory: there is none of this number.
    """
    if not folder_of(number).exists():
        raise NoLaboratory(f"laboratory {number} is not up: `python -m tests.lab up`")
    try:
        values = json.loads((folder_of(number) / "plan.json").read_text())
    except (FileNotFoundError, ValueError):  # its maker was killed before it made anything
        return Claim(number, Plan(hosts=0))
    owner = values.pop("owner")
    # Another version's plan may have further fields.
    known = {name: values[name] for name in values.keys() & {field.name for field in fields(Plan)}}
    return Claim(number, Plan(**known, owner=owner and (owner[0], owner[1])))


def abandoned() -> list[Claim]:
    """Laboratories whose owner is gone."""
    if not ROOT.exists():
        return []
    claims = [find(int(folder.name)) for folder in ROOT.iterdir()]
    return [
        single_claim
        for single_claim in claims
        if single_claim.plan.owner is not None and not _lives(*single_claim.plan.owner)
    ]


def this_process() -> tuple[int, float]:
    return os.getpid(), psutil.Process().create_time()


def _lives(pid: int, began: float) -> bool:
    try:
        return psutil.Process(pid).create_time() == began
    except psutil.NoSuchProcess:
        return False
