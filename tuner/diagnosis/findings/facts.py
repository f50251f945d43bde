"""Facts about a trace that several rules use: fractions of the step, exposed communication, and the fixed cost of a
collective call."""

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
"""Bytes per second of a link of 1 Gbit/s, the slowest link assumed for training where no large message shows the
speed."""


@dataclass(frozen=True)
class Exchange:
    """Totals over all collectives of one purpose, such as gradient reduction, per step and rank."""

    calls: float
    bytes: float | None
    """Bytes of all messages of the collectives of one purpose, such as gradient reduction; None where the trace does
    not record sizes."""
    exposed_s: float
    """Seconds of the collectives of one purpose (such as gradient reduction) during which nothing is computed, counted
    from the arrival of the last rank."""
    transferring_s: float
    moved_bytes: float | None

    @property
    def message_bytes(self) -> float | None:
        """Mean bytes of one collective call; None where sizes or calls are missing."""
        return None if self.bytes is None or not self.calls else self.bytes / self.calls

    @property
    def bytes_per_s(self) -> float | None:
        """Bus bandwidth of the collectives of one purpose (such as gradient reduction) in bytes per second; None where
        it is unknown."""
        return self.moved_bytes / self.transferring_s if self.moved_bytes and self.transferring_s else None


@dataclass(frozen=True)
class Facts:
    """Diagnosis of a trace, together with the trial that was traced, if it is known."""

    diagnosis: Diagnosis
    trial: TracedTrial | None = None
    link_bytes_per_s: float | None = None
    """Bus bandwidth (bytes per second) measured on the same link while no other program used it."""

    @cached_property
    def disturbed(self) -> str | None:
        """Note that other programs used the ranks' cores while the traces were recorded; None where no worker observed
        it."""
        run = self.diagnosis.recorded
        if self.trial is None or run is None or run.foreign_cpu_cores is None or run.host_cpu_cores is None:
            return None
        return disturbance.foreign_load(run.foreign_cpu_cores, self.trial.cluster, run.host_cpu_cores)

    def step_fraction(self, seconds: float) -> float:
        """Seconds expressed as a fraction of a step's time."""
        return seconds / self.diagnosis.step_s if self.diagnosis.step_s else 0.0

    @cached_property
    def gradients(self) -> Exchange:
        """Total calls, bytes and seconds of the collectives that reduce gradients."""
        return self._exchange("gradients", REDUCTIONS)

    @cached_property
    def parameters(self) -> Exchange:
        """Total calls, bytes and seconds of the all-gathers that collect parameters."""
        return self._exchange("parameters", ("all_gather",))

    def call_s(self, exchange: Exchange) -> float | None:
        """Seconds of overhead of one collective call: its time beyond sending its bytes at the fastest known speed;
        None where sizes are unknown."""
        if exchange.moved_bytes is None:
            return None
        # Small messages are dominated by the call itself and say nothing about the link's speed.
        collectives = self.diagnosis.collectives
        large = [figures for figures in collectives if figures.calls and (figures.message_bytes or 0) >= MIB]
        fastest = max((figures.bytes_per_s or 0.0 for figures in large), default=0.0)
        speed = fastest or self.link_bytes_per_s or _SLOWEST
        return max(0.0, (exchange.transferring_s - exchange.moved_bytes / speed) / exchange.calls)

    def least_on_a_rank(self, part: str) -> float:
        """Fraction of the step that a part of it, such as host time, takes on the rank where it is smallest."""
        by_rank = [
            fmean(getattr(step.parts, f"{part}_s") for step in self.diagnosis.steps if step.rank == rank)
            for rank in {step.rank for step in self.diagnosis.steps}
        ]
        return self.step_fraction(min(by_rank))

    def merging_gain(self, exchange: Exchange, calls: float) -> float:
        """Fraction of the step that fewer and larger collective calls for the same bytes may save."""
        call_s = self.call_s(exchange) if exchange.calls > calls else None
        return 0.0 if call_s is None else self.step_fraction(min(exchange.exposed_s, (exchange.calls - calls) * call_s))

    def _exchange(self, purpose: str, kinds: Collection[str]) -> Exchange:
        chosen = [
            figures for figures in self.diagnosis.collectives if figures.purpose == purpose and figures.kind in kinds
        ]
        sizes = [None if figures.message_bytes is None else figures.message_bytes * figures.calls for figures in chosen]
        return Exchange(
            calls=sum(figures.calls for figures in chosen),
            bytes=_sum_if_known(sizes),
            exposed_s=sum(map(_exposed_transfer, chosen)),
            transferring_s=sum(figures.transferring_s for figures in chosen),
            moved_bytes=_sum_if_known([figures.moved_bytes for figures in chosen]),
        )


def _exposed_transfer(figures: CollectiveFigures) -> float:
    """Seconds of a collective that overlap with no computation, without the wait for late ranks, about which another
    rule makes a finding."""
    return max(0.0, figures.exposed_s - figures.waiting_s)


def _sum_if_known(values: list[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if len(numbers) == len(values) else None
