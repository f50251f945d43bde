"""Seconds of one training step and tokens per second, part by part, for many candidates at once. Pure numpy."""

from shardtune.tuner.prediction.throughput.rates import Network, Rates, rates_of
from shardtune.tuner.prediction.throughput.step import StepTable, step_times

__all__ = ["Network", "Rates", "StepTable", "rates_of", "step_times"]
