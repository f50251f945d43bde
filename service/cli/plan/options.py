"""Read the options of `shardtune plan` that are lists: numbers of GPUs, prices, measurements."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from shardtune.api_schemas.trials.plans import Plan, fold_gpu_name
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.read import read_text
from shardtune.tuner.plans import written_lists

if TYPE_CHECKING:
    from shardtune.service.cli.plan import sky_prices
    from shardtune.tuner.prediction import catalogue
else:
    sky_prices = LazyModule("shardtune.service.cli.plan.sky_prices")
    catalogue = LazyModule("shardtune.tuner.prediction.catalogue")

SKY = "sky"
"""Value of `--prices` that stands for SkyPilot's catalogue; `sky:lambda` for one cloud of it."""
Value = TypeVar("Value")


def read_counts(text: str) -> tuple[int, ...]:
    """Read numbers of GPUs: `8..1024` stands for 8, 16, 32 and so on up to 1024, `8,16,24` lists them.

    Raises:
        InputError: the text has neither form, or is a range that ends before it begins.
    """
    return _as_option(lambda: written_lists.read_counts(text))


class PriceOptions(NamedTuple):
    """Options of a plan's prices, as the user writes them."""

    price: str | None
    source: str | None
    """JSON file of prices, or `sky` or `sky:CLOUD` for SkyPilot's catalogue."""
    currency: str | None
    spot: bool = False


class StatedPrices(NamedTuple):
    """Prices of a GPU-hour by kind of GPU, their currency if it is known, and notes on their source."""

    prices: Mapping[str, float]
    currency: str | None
    notes: tuple[str, ...] = ()
    is_source_currency: bool = False
    """Whether the currency is that of the source, since the user stated none."""

    def noted(self, plan: Plan) -> Plan:
        """Return the plan with the notes on the source of its prices, and on the currency of its budget."""
        notes = self.notes
        if self.is_source_currency and plan.budget is not None:
            notes += (f"budget ({plan.budget:g}): taken to be in {self.currency}, as SkyPilot's prices are",)
        return plan.model_copy(update={"notes": (*plan.notes, *notes)}) if notes else plan


def read_prices(options: PriceOptions, kinds: Sequence[str], gpus_per_node: int) -> StatedPrices:
    """Read the prices of a GPU-hour by kind of GPU: `h100=2.10,h200=2.60`, and those of a JSON object in a file or of
    SkyPilot's catalogue. A price on the command line replaces another one of its kind. A file may hold prices of kinds
    that the plan does not compare; a price on the command line may not.

    Raises:
        InputError: the text, the file or the catalogue does not have this form, or the prices have two currencies.
    """
    stated = _as_option(lambda: written_lists.read_prices(options.price or ""))
    replaced = {fold_gpu_name(name) for name in stated}
    missing = [kind for kind in kinds if fold_gpu_name(kind) not in replaced]
    others = StatedPrices({}, options.currency)
    if options.source is not None and is_sky(options.source):
        others = _sky_prices(options, options.source, missing, gpus_per_node)
    elif options.spot:
        raise InputError("--spot (given) is a choice among SkyPilot's prices; add --prices sky, or leave it out")
    elif options.source is not None:
        others = _file_prices(options, Path(options.source), missing)
    kept = {name: price for name, price in others.prices.items() if fold_gpu_name(name) not in replaced}
    return others._replace(prices=kept | stated)


def is_sky(source: str) -> bool:
    """Whether the value of `--prices` names SkyPilot's catalogue, and not a file."""
    return source == SKY or source.startswith(f"{SKY}:")


def _sky_prices(options: PriceOptions, source: str, kinds: Sequence[str], gpus_per_node: int) -> StatedPrices:
    """Read SkyPilot's prices of some kinds of GPUs, unless others of the plan may be in another currency."""
    own = options.currency
    if own is not None and own.casefold() != sky_prices.CURRENCY.casefold():
        raise InputError(
            f"--currency ({own}) is not that of SkyPilot's prices, {sky_prices.CURRENCY}; leave --prices {source} out, "
            f"or state {sky_prices.CURRENCY}"
        )
    if own is None and options.price:
        raise InputError(
            f"--price ({options.price[:40]}) may be in another currency than SkyPilot's prices, {sky_prices.CURRENCY}; add "
            f"--currency {sky_prices.CURRENCY} if it is not"
        )
    if not kinds:
        return StatedPrices({}, own)
    prices, notes = sky_prices.read(source, kinds, gpus_per_node, is_spot=options.spot)
    return StatedPrices(prices, own or sky_prices.CURRENCY, notes, is_source_currency=own is None)


def _file_prices(options: PriceOptions, file: Path, kinds: Sequence[str]) -> StatedPrices:
    """Read the prices of some kinds of GPUs from a file, which may hold those of others too."""
    prices = dict[str, float]()
    for name, price in _read_price_file(file).items():
        kind = next((kind for kind in kinds if _is_kind(name, kind)), None)
        if kind in prices:
            raise InputError(f"--prices ({file}) has several prices of {kind}, the last as {name}; keep one")
        if kind is not None:
            prices[kind] = price
    missing = [kind for kind in kinds if kind not in prices]
    notes = (f"--prices ({file}) has no price of {', '.join(missing)}",) if missing else ()
    return StatedPrices(prices, options.currency, notes)


def _is_kind(name: str, kind: str) -> bool:
    """Whether a name in a file of prices is one for a kind of GPU of the plan, such as its name in the catalogue."""
    if fold_gpu_name(name) == fold_gpu_name(kind):
        return True
    try:
        return catalogue.find(name) == catalogue.find(kind)
    except ValueError:
        # The file may hold kinds that the catalogue lacks; the plan itself rejects such a kind with a remedy.
        return False


def _read_price_file(file: Path) -> dict[str, float]:
    content = _read_json(file, "--prices")
    if not isinstance(content, dict) or not all(_is_number(value) for value in content.values()):
        raise InputError(f'--prices ({file}) must be a JSON object of numbers, such as {{"h100": 2.1}}')
    try:
        return {str(name): float(value) for name, value in content.items()}
    except OverflowError:
        raise InputError(f"--prices ({file}) has a number that is too large for a price; correct it") from None


def _as_option(read: Callable[[], Value]) -> Value:
    """Read a list of values; error messages name the command's option, such as `--counts`, in place of the field."""
    try:
        return read()
    except ValueError as error:
        raise InputError(f"--{error}") from None


def read_measurements(file: Path | None) -> list[Any]:
    """Read measurements on a few GPUs: a JSON list of objects with `gpu`, `gpus`, `config`, `tokens_per_s_per_gpu`.

    Raises:
        InputError: the file does not have this form.
    """
    if file is None:
        return []
    content = _read_json(file, "--measured")
    if not isinstance(content, list):
        raise InputError(f"--measured ({file}) must be a JSON list of measurements; see `POST /v1/plans`")
    return content


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _read_json(file: Path, option: str) -> Any:
    try:
        return json.loads(read_text(file, option, "give a JSON file"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{option} ({file}) is not JSON: {error}; correct it") from None
