"""Seconds of one training step and tokens per second, part by part, for many candidates at once. Pure numpy."""

from shardtune.tuner.prediction.throughput.stages import step_times
from shardtune.tuner.prediction.throughput.step import StepTable, bounding_resources, resource_seconds

__all__ = ["StepTable", "bounding_resources", "resource_seconds", "step_times"]
