"""Programs that a rehearsal cannot carry: those that need values, another device's kernels, or peers that answer."""

from shardtune.api_schemas.training.adapters import quantization_of
from shardtune.api_schemas.training.optimizers import AdamW8bit, AdamWBf16
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.rehearsals import RehearsalProblem


def obstacle(trial: TrialTask) -> RehearsalProblem | None:
    """Return the reason why a trial cannot be rehearsed (built and stepped with fake tensors); None if it can."""
    unsupported = _unsupported_value(trial)
    if unsupported is None:
        return None
    field, value, why = unsupported
    return RehearsalProblem(code="unsupported", field=field, value=value, message=f"{field} ({value}) {why}")


def _unsupported_value(trial: TrialTask) -> tuple[str, str, str] | None:
    """Return the name, the value and the reason of the first setting that no rehearsal (building and stepping with fake
    tensors) supports. None if all are supported."""
    config, workload = trial.config, trial.workload
    strategy = config.strategy
    if trial.model.is_own:
        return (
            "model",
            trial.model.name,
            "is your own code, whose process would have to be allowed to run it; use a named model",
        )
    if config.backend in ("ddp", "zero"):
        why = {
            "ddp": "reads results of its reductions in C++, and torch's fake process group returns none (torch 2.13)",
            "zero": "starts DeepSpeed's own engine, which no rehearsal has been made for (DeepSpeed 0.19.8)",
        }[config.backend]
        return "backend", config.backend, f"{why}; rehearse fsdp1 or fsdp2, and measure this one"
    if getattr(strategy, "cpu_offload", False):
        return (
            "cpu_offload",
            "true",
            "keeps shards in host memory, which a rehearsal does not tell apart; set it to false",
        )
    if config.activation_offload:
        return "activation_offload", "true", "copies between devices, and a rehearsal has one; set it to false"
    if config.compile:
        return "compile", "true", "changes what blocks keep by kernels that only a GPU can make; set it to false"
    if config.loss_compile:
        return "loss_compile", "true", "runs kernels that only a GPU can make; set it to false"
    if workload.float8 is not None:
        return "float8", workload.float8, "scales by values; rehearse without it"
    if quantization_of(workload.adapter) is not None:
        return "quantization", "true", "packs weights by their values; rehearse LoRA without it"
    if isinstance(workload.optimizer, AdamW8bit):
        return "optimizer", workload.optimizer.kind, "quantises states by their values; use adamw"
    if isinstance(workload.optimizer, AdamWBf16):
        return "optimizer", workload.optimizer.kind, "rounds by chance, from the value of its count of steps; use adamw"
    return None
