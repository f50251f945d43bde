"""Schemas of a rung test: what smaller clusters foretold for a study's cluster, beside what the study measured."""

from pydantic import Field

from shardtune.api_schemas.base import Band, Schema


class ForetoldTrial(Schema):
    """Trial of a study for which earlier studies on smaller clusters also gave a projected speed, made without this
    study's own measurements."""

    trial_number: int
    """Number of the trial."""
    from_gpus: tuple[int, ...]
    """Numbers of GPUs on which earlier studies measured the configuration of the trial; its speed was projected from
    these sizes."""
    tokens_per_s_per_gpu: Band
    """Speed that was projected for the trial on the study's cluster from smaller clusters, with its 90 % band."""
    measured_tokens_per_s_per_gpu: float
    """Measured speed of the trial on the study's cluster."""

    @property
    def relative_error(self) -> float:
        """Speed projected from smaller clusters divided by the measured speed, minus 1. A positive value means that the
        trial was slower than projected."""
        return self.tokens_per_s_per_gpu.expected / self.measured_tokens_per_s_per_gpu - 1.0

    @property
    def is_inside(self) -> bool:
        """Whether the measured speed lies within the 90 % band of the speed projected from smaller clusters."""
        speed = self.tokens_per_s_per_gpu
        return speed.low <= self.measured_tokens_per_s_per_gpu <= speed.high


class RungTest(Schema):
    """Check of projections: speeds that were projected to a study's cluster from smaller clusters, compared with the
    speeds that the study measured."""

    from_gpus: tuple[int, ...]
    """Numbers of GPUs of the smaller clusters, from which speeds were projected."""
    studies: tuple[str, ...] = Field(examples=[["study-0a1b2c3d4e5f"]])
    """Ids of the studies that measured on the smaller clusters."""
    trials: tuple[ForetoldTrial, ...]
    """Trials whose measured speeds are compared with speeds projected from smaller clusters, in the order of their
    numbers."""
    median_error: float
    """Median absolute error of the speeds projected from smaller clusters, as a fraction of the measured speed."""
    largest_error: float
    """Largest absolute error of the speeds projected from smaller clusters, as a fraction of the measured speed."""
    inside_band: int
    """Number of trials whose measured speed lies within the 90 % band projected from smaller clusters."""
    band_factor: float = 1.0
    """Factor by which the bands of the study's projection to its target were widened, because measured trials lay
    outside of their own bands. Without it (1) the bands come from the errors of published runs alone."""
