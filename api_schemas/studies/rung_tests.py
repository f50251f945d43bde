"""Schemas of a rung test: what smaller clusters foretold for a study's cluster, beside what the study measured."""

from pydantic import Field

from shardtune.api_schemas.base import Band, Schema


class ForetoldTrial(Schema):
    """Trial of the study that smaller clusters foretold without the study's own measurements."""

    trial_number: int
    """Number of the trial."""
    from_gpus: tuple[int, ...]
    """Numbers of GPUs on which earlier studies measured its configuration."""
    tokens_per_s_per_gpu: Band
    """Speed that these sizes foretell for the study's cluster, with its 90 % band."""
    measured_tokens_per_s_per_gpu: float
    """Speed of the trial on the study's cluster."""

    @property
    def relative_error(self) -> float:
        """Foretold over measured speed, less 1: positive where the trial was slower than foretold."""
        return self.tokens_per_s_per_gpu.expected / self.measured_tokens_per_s_per_gpu - 1.0

    @property
    def is_inside(self) -> bool:
        """Whether the measured speed lies within the foretold band."""
        speed = self.tokens_per_s_per_gpu
        return speed.low <= self.measured_tokens_per_s_per_gpu <= speed.high


class RungTest(Schema):
    """Comparison of what smaller clusters foretold for the study's cluster with what it measured."""

    from_gpus: tuple[int, ...]
    """Numbers of GPUs of the smaller clusters."""
    studies: tuple[str, ...] = Field(examples=[["study-0a1b2c3d4e5f"]])
    """Ids of the studies that measured on them."""
    trials: tuple[ForetoldTrial, ...]
    """Foretold trials, in the order of their numbers."""
    median_error: float
    """Median of the errors of foretold speeds, relative to the measured ones, without sign."""
    largest_error: float
    """Largest of these errors."""
    inside_band: int
    """Number of foretold trials whose measured speed lies within the foretold 90 % band."""
    band_factor: float = 1.0
    """Factor by which the bands of the target are wider than those of published runs, since trials lay outside of
    theirs; never below 1."""
