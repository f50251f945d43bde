"""What a training script imports to become a trial: `trial = adapter.trial()`, `trial.prepare(model)`, `trial.report(loss)`."""

from shardtune.workers.adapter import AdapterError, Refused, ScriptTrial, Stopped, in_trial, trial

__all__ = ["AdapterError", "Refused", "ScriptTrial", "Stopped", "in_trial", "trial"]
