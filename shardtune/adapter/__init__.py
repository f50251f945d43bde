"""What a training script imports to become a trial, and to train with what was found: `trial = adapter.configuration(…)`,
`trial.prepare(model)`, `trial.report(loss)`."""

from shardtune.workers.adapter import AdapterError, Rejected, ScriptTrial, Stopped, configuration, in_trial, trial

__all__ = ["AdapterError", "Rejected", "ScriptTrial", "Stopped", "configuration", "in_trial", "trial"]
