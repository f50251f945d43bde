"""Prices that the operator of a service states once for all plans: their kinds of GPUs, and the plans that use them."""

from collections.abc import Mapping
from typing import NamedTuple

from shardtune.api_schemas.trials.plans import PlanRequest
from shardtune.tuner.prediction import catalogue


class PricedRequest(NamedTuple):
    """Request for a plan with the operator's prices, and notes on them for the plan."""

    request: PlanRequest
    notes: tuple[str, ...] = ()


def check_kinds(prices: Mapping[str, float], field: str) -> None:
    """Check that each price names one kind of GPU of the catalogue, and no other price names the same kind.

    Raises:
        ValueError: a name is unknown, can be several kinds, or is another name of a kind that has a price.
    """
    kinds = dict[str, str]()
    for name, price in prices.items():
        try:
            kind = catalogue.find(name).name
        except ValueError:
            raise ValueError(
                f"{field}.{name} ({price:g}) names no kind of GPU of the catalogue; {catalogue.suggest(name)}"
            ) from None
        earlier = kinds.setdefault(kind, name)
        if earlier != name:
            raise ValueError(f"{field}.{name} ({price:g}) is the same kind as {earlier}; give its price once")


def with_operator_prices(request: PlanRequest, prices: Mapping[str, float], currency: str) -> PricedRequest:
    """Add the operator's prices to a request, for its kinds of GPUs that have none. Prices in different currencies
    would be compared as if they were in one, so the request either has no prices, or states the operator's currency."""
    missing = {name: _price_of(name, prices) for name in request.gpus if request.price_of(name) is None}
    own = {name: price for name, price in missing.items() if price is not None}
    if not own:
        return PricedRequest(request)
    if request.currency is None and not request.prices:
        notes = [_used(own, currency)]
        if request.budget is not None:
            notes.append(f"budget ({request.budget:g}): taken to be in {currency}, as the service's prices are")
        return PricedRequest(request.model_copy(update={"prices": own, "currency": currency}), tuple(notes))
    if request.currency is not None and request.currency.casefold() == currency.casefold():
        priced = request.model_copy(update={"prices": request.prices | own})
        return PricedRequest(priced, (_used(own, currency),))
    return PricedRequest(request, (_unused(own, currency, request),))


def _price_of(name: str, prices: Mapping[str, float]) -> float | None:
    try:
        kind = catalogue.find(name)
    except ValueError:
        # The plan rejects this kind, with a remedy.
        return None
    return next((price for own, price in prices.items() if catalogue.find(own) == kind), None)


def _used(own: Mapping[str, float], currency: str) -> str:
    return f"price of {', '.join(own)}: that of the service's setting gpu_prices, in {currency}"


def _unused(own: Mapping[str, float], currency: str, request: PlanRequest) -> str:
    stated = "have no stated currency" if request.currency is None else f"are in {request.currency}"
    return (
        f"price of {', '.join(own)}: the service's setting gpu_prices has one in {currency}, which is not used, because "
        f"the request's prices and budget {stated}; state currency {currency} if they are in it"
    )
