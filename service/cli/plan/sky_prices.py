"""Prices of GPUs from the catalogue that an installed SkyPilot keeps as CSV files on this machine. SkyPilot itself is not
imported: versions 7 and 8 of its catalogue have the columns that are read here."""

import csv
import difflib
import io
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from shardtune.api_schemas.access import regular_file
from shardtune.api_schemas.machines.gpus import GpuModel
from shardtune.service.cli.errors import InputError
from shardtune.tuner.export.launchers.gpu_names import NAMES
from shardtune.tuner.prediction import catalogue

CURRENCY = "USD"
"""Currency of SkyPilot's prices, which it prints with a dollar sign; its files do not state one."""
_FOLDER = Path(".sky/catalogs")
"""Folder of SkyPilot's catalogues in the home folder. It has a folder for each version, and in this for each cloud."""
_FILE = "vms.csv"
_OTHER_NAMES = {
    "A100-SXM4-80GB": ("A100-80GB-SXM",),
    "H100-SXM5-80GB": ("H100-SXM",),
    "H200-SXM-141GB": ("H200-SXM",),
    "A6000-48GB": ("A6000",),
}
"""Names of accelerators that single clouds of the catalogue (version 8) use beside SkyPilot's own."""
_LEAST_BIDS = frozenset({"mithril"})
"""Clouds whose files state the least bid of an auction as each price (`minimum_price_cents` of SkyPilot's
`fetch_mithril.py`), for which no instance may be on offer."""
_MEMORY = re.compile(r"SizeInMiB\W+(\d+)")
_MEMORY_TOLERANCE = 0.15
"""Largest relative difference between the memory of a listed GPU and of the catalogue's. Clouds list GPUs of several
sizes under one name: the H100 of some has 94 GB, and the A100 of some has 80 GB."""


class SkyPrices(NamedTuple):
    """Price of a GPU-hour by kind of GPU, in US dollars, and notes that say where each was read."""

    prices: dict[str, float]
    notes: tuple[str, ...]


class _Offer(NamedTuple):
    """Instance of a cloud, with its price for each of its GPUs and hour. Of several, the least is the cheapest."""

    price: float
    cloud: str
    region: str
    instance: str


class _Catalogue(NamedTuple):
    """Files of one version of SkyPilot's catalogue."""

    version: str
    files: dict[str, Path]
    """File of each cloud."""


def read(source: str, kinds: Sequence[str], gpus_per_node: int, *, is_spot: bool) -> SkyPrices:
    """Read the lowest price of a GPU-hour, on demand or spot, over all clouds and regions, for each kind of GPU. Only
    instances with as many GPUs as a node of the plan count, since smaller ones have other links between GPUs.

    Raises:
        InputError: there is no catalogue, a file of it has other columns, a kind is unknown, or no instance of
            these kinds has a price.
    """
    stored, models = _catalogue_of(source), {kind: _model(kind) for kind in kinds}
    offers = _cheapest(source, stored, models, gpus_per_node, is_spot=is_spot)
    how, size = "spot" if is_spot else "on demand", f"instances of {gpus_per_node} GPUs"
    missing = ", ".join(kind for kind in kinds if kind not in offers)
    if not offers:
        raise InputError(
            f"--prices ({source}) has no price, {how}, of {missing} in {size} (SkyPilot's catalogue {stored.version}: "
            f"{', '.join(stored.files)}); set --gpus-per-node to the size of an instance, or state prices with --price"
        )
    notes = [_note(kind, models[kind], offer, how, stored) for kind, offer in offers.items()]
    compared = [cloud for cloud in stored.files if cloud not in _LEAST_BIDS]
    if len(compared) > 1:
        notes.append(f"lowest prices among the clouds of SkyPilot's catalogue on this machine: {', '.join(compared)}")
    if missing:
        notes.append(f"SkyPilot's catalogue {stored.version} has no price, {how}, of {missing} in {size}")
    if is_spot:
        notes.append("spot instances are taken away at times: state how often, as --failure-rate")
    return SkyPrices({kind: offer.price for kind, offer in offers.items()}, tuple(notes))


def _cheapest(
    source: str, stored: _Catalogue, models: Mapping[str, GpuModel], gpus_per_node: int, *, is_spot: bool
) -> dict[str, _Offer]:
    """Cheapest offer of each kind of GPU that has one, in the order of the kinds."""
    kinds = defaultdict[str, list[str]](list)
    for kind, model in models.items():
        for name in _names(model):
            kinds[name].append(kind)
    offers = dict[str, _Offer]()
    for cloud, file in stored.files.items():
        if cloud in _LEAST_BIDS:
            continue
        for name, row in _rows(source, cloud, file, is_spot):
            for kind in kinds.get(name, ()):
                offer = _offer(cloud, row, models[kind], gpus_per_node)
                if offer is not None:
                    offers[kind] = min(offers.get(kind, offer), offer)
    return {kind: offers[kind] for kind in models if kind in offers}


def _catalogue_of(source: str) -> _Catalogue:
    """Newest version of the catalogue on this machine, with all its clouds, or the one that `sky:CLOUD` names."""
    folder = Path.home() / _FOLDER
    versions = [path for path in folder.glob("v*") if re.fullmatch(r"v\d{1,4}", path.name) and _files(path)]
    if not versions:
        raise InputError(
            f"--prices ({source}) finds no catalogue of SkyPilot in ~/{_FOLDER}; run `sky gpus list` on this machine, "
            "which downloads it, or state prices with --price"
        )
    newest = max(versions, key=lambda path: int(path.name[1:]))
    files, (sky, colon, cloud) = _files(newest), source.partition(":")
    if not colon:
        return _Catalogue(newest.name, files)
    if cloud not in files:
        close = difflib.get_close_matches(cloud.lower(), files, 1)
        remedy = f"did you mean {sky}:{close[0]}?" if close else f"use one of {', '.join(files)}"
        raise InputError(f"--prices ({source[:40]}) has no file in ~/{_FOLDER / newest.name}; {remedy}")
    return _Catalogue(newest.name, {cloud: files[cloud]})


def _files(version: Path) -> dict[str, Path]:
    return {path.parent.name: path for path in sorted(version.glob(f"*/{_FILE}"))}


def _model(kind: str) -> GpuModel:
    try:
        return catalogue.find(kind, "gpus")
    except ValueError as error:
        raise InputError(str(error)) from None


def _names(model: GpuModel) -> Iterator[str]:
    names = (NAMES[model.name].skypilot, *_OTHER_NAMES.get(model.name, ()))
    return (name.casefold() for name in names if name is not None)


class _Row(NamedTuple):
    """Values of one line of a file, as text."""

    instance: str
    gpus: str
    price: str
    region: str
    info: str


def _rows(source: str, cloud: str, file: Path, is_spot: bool) -> Iterator[tuple[str, _Row]]:
    """Names of the accelerators of a file, folded, each with the values of its line."""
    needed = ("InstanceType", "AcceleratorCount", "SpotPrice" if is_spot else "Price", "Region", "GpuInfo")
    shown = f"--prices ({source}) cannot read {cloud}/{_FILE} in ~/{_FOLDER / file.parent.parent.name}"
    try:
        # In one read, as SkyPilot writes a new file over the old one.
        text = regular_file.read_text(file)
        lines = csv.reader(io.StringIO(text, newline=""))
        header = next(lines, [])
        missing = [name for name in ("AcceleratorName", *needed) if name not in header]
        if missing:
            raise InputError(f"{shown}: it has no column {', '.join(missing)}; state prices with --price")
        name_at, places = header.index("AcceleratorName"), [header.index(name) for name in needed]
        for line in lines:
            if len(line) == len(header) and line[name_at]:
                yield line[name_at].casefold(), _Row(*(line[place] for place in places))
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{shown}: {error}; delete the file, so that SkyPilot downloads it again") from None


def _offer(cloud: str, row: _Row, model: GpuModel, gpus_per_node: int) -> _Offer | None:
    """Offer of a line; None if it is of another size, or has no price. Google's GPUs, whose lines name no instance, are
    listed without the price of their machine."""
    count, price = _number(row.gpus), _number(row.price)
    if count is None or price is None or abs(count - gpus_per_node) > 0.01 or price <= 0 or not row.instance:
        return None
    return _Offer(price / count, cloud, row.region, row.instance) if _has_memory(row.info, model, count) else None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _has_memory(info: str, model: GpuModel, count: float) -> bool:
    """Whether a listed GPU may have the memory of the catalogue's. Clouds list that of one GPU or of all, and some in GB."""
    listed = _MEMORY.search(info)
    if listed is None or model.memory_gib is None:
        return True
    mib = float(listed[1])
    gib = mib / 1024 if mib >= 1024 else mib
    return any(abs(size / model.memory_gib - 1) <= _MEMORY_TOLERANCE for size in (gib, gib / count))


def _note(kind: str, model: GpuModel, offer: _Offer, how: str, stored: _Catalogue) -> str:
    day = datetime.fromtimestamp(stored.files[offer.cloud].stat().st_mtime, UTC).date()
    name = NAMES[model.name].skypilot
    others = [other for other, names in NAMES.items() if names.skypilot == name and other != model.name]
    doubt = f"; SkyPilot's {name} can also be {' or '.join(others)}" if others else ""
    place = f"in {offer.region}" if offer.region else "in an unnamed region"
    return (
        f"price of {kind}: {offer.price:.4g} {CURRENCY}, {how}, {offer.cloud} {offer.instance} {place} "
        f"(SkyPilot's catalogue {stored.version}, file of {day}){doubt}"
    )
