"""Micro batches of a rank: which samples it trains on in a step, with the whole step's micro batches or fewer."""

import contextlib
from collections.abc import Callable
from typing import Any

from shardtune.api_schemas.trials.short_steps import ShortSteps, copied_samples
from shardtune.workers.rank.model import data
from shardtune.workers.rank.strategies.base import TrainingSetup
from shardtune.workers.rank.training.step import Step


class MicroBatches:
    """Maker of this rank's micro batches. Each contains whole samples, even if the rank trains on only a part of each
    sample (context parallelism)."""

    def __init__(
        self,
        setting: TrainingSetup,
        step: Step | None,
        while_first: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """Prepare the maker. `step` makes the batches. It is None if a user's script makes its own; every step then
        gets an empty list. `while_first` makes a context for the first step's batches, for which the user's code may
        load its data."""
        self._setting, self._source = setting, step
        self._while_first: Callable[[], contextlib.AbstractContextManager[None]] | None = while_first

    @property
    def are_own(self) -> bool:
        """Whether a user's script makes the batches itself."""
        return self._source is None

    def of_step(self, step: int, count: int | None = None) -> list[Any]:
        """Micro batches of a step. `count` is their number; if None, it is that of a whole step."""
        return self._make(step, self._setting.accumulation if count is None else count, copies=1)

    def of_recorded_step(self, step: int, short: ShortSteps | None) -> list[Any]:
        """Micro batches of a step whose loss, norm and checksum are recorded. In a study with short steps (of fewer
        micro batches), these micro batches contain copies of the same few samples in all runs."""
        if short is None:
            return self.of_step(step)
        setting, count = self._setting, short.parity_accumulation
        config = setting.task.config
        slots = count * config.micro_batch * config.data_ranks(setting.context.world_size)
        copies, rest = divmod(slots, short.parity_samples)
        assert rest == 0, (
            f"{count} micro batches have {slots} slots, which {short.parity_samples} samples do not divide"
        )
        return self._make(step, count, copies)

    def _make(self, step: int, count: int, copies: int) -> list[Any]:
        if self._source is None:
            return []
        context, self._while_first = self._while_first or contextlib.nullcontext, None
        with context():
            return self._made_by(self._source, step, count, copies)

    def _made_by(self, source: Step, step: int, count: int, copies: int) -> list[Any]:
        setting, size = self._setting, self._setting.task.config.micro_batch
        device, plan = setting.context.device, setting.task.workload.sample_plan
        if plan is not None:
            split = setting.split
            parts = [plan.samples(step, split, setting.data_rank, micro) for micro in range(count)]
            return [source.make_batch(step, part, device) for part in parts]
        slots = [data.micro_batch_indices(setting.data_rank, size, count, i) for i in range(count)]
        return [source.make_batch(step, copied_samples(part, copies), device) for part in slots]
