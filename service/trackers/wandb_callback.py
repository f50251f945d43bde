"""Log a study to Weights & Biases: a run for each trial in the study's group, and a run with the answer."""

from typing import Any, Literal

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.trial import Trial
from shardtune.service.trackers import optional_packages, trial_values

Mode = Literal["online", "offline", "disabled"]


class WandbCallback:
    """Callback of `Study.wait` that logs trials and the answer to Weights & Biases.

    Ids of W&B runs are derived from the study's id, so that each trial is logged only once even if the study is waited
    for twice.
    """

    def __init__(self, project: str = "shardtune", *, mode: Mode | None = None, folder: str | None = None) -> None:
        """Choose the W&B project. `mode`: `offline` writes only to `folder`, for a later `wandb sync` (default: wandb's
        own setting `WANDB_MODE`). `folder`: folder for wandb's files (default: the current one).

        Raises:
            MissingPackage: wandb is not installed.
        """
        self._wandb: Any = optional_packages.load("wandb", "WandbCallback")
        self._options = {"project": project, "mode": mode, "dir": folder}

    def trial_ended(self, study: Study, trial: Trial) -> None:
        """Log a trial to Weights & Biases: its knobs as the run's configuration; its figures, state and reasons as
        its summary.
        """
        config = trial_values.parameters(trial)
        summary: dict[str, Any] = {**trial_values.figures(trial), **trial_values.notes(trial)}
        self._write(study, f"{study.study_id}-{trial.number}", "trial", config, summary)

    def study_ended(self, study: Study) -> None:
        """Log a study's answer in a separate W&B run for the study."""
        config = study.spec.model_dump(mode="json")
        summary: dict[str, Any] = {**trial_values.answer_figures(study), **trial_values.study_notes(study)}
        self._write(study, study.study_id, "study", config, summary)

    def _write(self, study: Study, name: str, kind: str, config: Any, summary: dict[str, Any]) -> None:
        # A run of its own beside one that the program may have open; the summary alone, which a repetition overwrites.
        with self._wandb.init(
            **self._options,
            id=name,
            name=name,
            group=study.study_id,
            job_type=kind,
            config=config,
            resume="allow",
            # Otherwise it prints ten lines for each trial.
            settings=self._wandb.Settings(silent=True),
            reinit="create_new",
        ) as run:
            run.summary.update(summary)
