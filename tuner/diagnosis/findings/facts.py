"""What several rules ask of a diagnosis: shares of the step, what is exposed, what a call costs whatever its size."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from shardtune.api_schemas.trials.diagnosis import CollectiveFigures, Diagnosis
from shardtune.tuner.diagnosis.findings.traced_trial import TracedTrial
from shardtune.tuner.verdict import disturbance

MIB = 1 << 20
REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
_SLOWEST = 1.25e8
"""Bytes per second of a link of 1 Gbit/s, the slowest that training is taken to run over where no large message tells."""


@dataclass(frozen=True)
class Exchange:
    """All collectives of one purpose, per step and rank."""

    calls: float
    bytes: float | None
    """Of all messages; None where the trace does not say."""
    exposed_s: float
    """Nothing was computed beside it, and all ranks had come."""
    transferring_s: float
    moved_bytes: float | None

    @property
    def message_bytes(self) -> float | None:
        """Mean of a call."""
        return None if self.bytes is None or not self.calls else self.bytes / self.calls

    @property
    def bytes_per_s(self) -> float | None:
        """Bus bandwidth."""
        return self.moved_bytes / self.transferring_s if self.moved_bytes and self.transferring_s else None


@dataclass(frozen=True)
class Facts:
    """A diagnosis, and the trial that it is of where that is known."""

    found: Diagnosis
    trial: TracedTrial | None = None
    link_bytes_per_s: float | None = None
    """Bus bandwidth that was measured on the same link with nothing else running."""

    @cached_property
    def disturbed(self) -> str | None:
        """That other programs took the cores of the ranks while the traces were recorded, in words; None where nobody saw it."""
        run = self.found.recorded
        if self.trial is None or run is None or run.foreign_cpu_cores is None or run.host_cpu_cores is None:
            return None
        return disturbance.taken(run.foreign_cpu_cores, self.trial.cluster, run.host_cpu_cores)

    def share(self, seconds: float) -> float:
        """Of a step."""
        return seconds / self.found.step_s if self.found.step_s else 0.0

    @cached_property
    def gradients(self) -> Exchange:
        """Reductions."""
        return self._exchange("gradients", REDUCTIONS)

    @cached_property
    def parameters(self) -> Exchange:
        """All-gathers."""
        return self._exchange("parameters", ("all_gather",))

    def call_s(self, exchange: Exchange) -> float | None:
        """What one of its calls takes beyond its bytes at the fastest speed known; None where sizes are not."""
        if exchange.moved_bytes is None:
            return None
        large = [one for one in self.found.collectives if one.calls and (one.message_bytes or 0) >= MIB]
        seen = max((one.bytes_per_s or 0.0 for one in large), default=0.0)
        speed = seen or self.link_bytes_per_s or _SLOWEST
        return max(0.0, (exchange.transferring_s - exchange.moved_bytes / speed) / exchange.calls)

    def least_on_a_rank(self, part: str) -> float:
        """Share of the step that a part takes on every rank."""
        by_rank = [
            fmean(getattr(one.parts, f"{part}_s") for one in self.found.steps if one.rank == rank)
            for rank in {one.rank for one in self.found.steps}
        ]
        return self.share(min(by_rank))

    def merged_saves(self, exchange: Exchange, calls: float) -> float:
        """Share of the step that fewer calls for the same bytes may save."""
        call_s = self.call_s(exchange) if exchange.calls > calls else None
        return 0.0 if call_s is None else self.share(min(exchange.exposed_s, (exchange.calls - calls) * call_s))

    def _exchange(self, purpose: str, kinds: Collection[str]) -> Exchange:
        some = [one for one in self.found.collectives if one.purpose == purpose and one.kind in kinds]
        return Exchange(
            calls=sum(one.calls for one in some),
            bytes=_sum([None if one.message_bytes is None else one.message_bytes * one.calls for one in some]),
            exposed_s=sum(map(_exposed_transfer, some)),
            transferring_s=sum(one.transferring_s for one in some),
            moved_bytes=_sum([one.moved_bytes for one in some]),
        )


def _exposed_transfer(one: CollectiveFigures) -> float:
    """Less waiting, which has a rule of its own."""
    return max(0.0, one.exposed_s - one.waiting_s)


def _sum(some: list[float | None]) -> float | None:
    known = [one for one in some if one is not None]
    return sum(known) if len(known) == len(some) else None
