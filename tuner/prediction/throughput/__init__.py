"""Seconds of one training step and tokens per second, part by part, for many candidates at once. Pure numpy."""

from shardtune.tuner.prediction.throughput.step import StepTable, step_times

__all__ = ["StepTable", "step_times"]
