"""Interface for training scripts, to become a trial and to train with the best configuration: `trial =
adapter.configuration(…)`, `trial.prepare(model)`, `trial.report(loss)`."""

from shardtune.workers.adapter import AdapterError, Rejected, ScriptTrial, Stopped, configuration, in_trial, trial

__all__ = ["AdapterError", "Rejected", "ScriptTrial", "Stopped", "configuration", "in_trial", "trial"]
