"""Log a study to MLflow: one run for the study, and a nested run for each trial."""

from typing import Any

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.trials.trial import Trial
from shardtune.service.trackers import optional_packages, trial_values

_STUDY, _TRIAL = "shardtune.study_id", "shardtune.trial"
_LONGEST_TAG = 5000
"""Maximum number of characters of a tag in MLflow 3."""


class MlflowCallback:
    """Callback of `Study.wait` that logs trials and the answer to MLflow.

    Existing MLflow runs are found by their tags, so that each trial is logged only once even if the study is waited for
    twice.
    """

    def __init__(self, experiment: str = "shardtune", tracking_uri: str | None = None) -> None:
        """Connect to MLflow. `experiment` is created if it does not exist; `tracking_uri`: address of the MLflow server
        (default: MLflow's own setting `MLFLOW_TRACKING_URI`).

        Raises:
            MissingPackage: neither mlflow nor mlflow-skinny is installed.
        """
        mlflow = optional_packages.load("mlflow", "MlflowCallback", "mlflow-skinny")
        self._client: Any = mlflow.MlflowClient(tracking_uri=tracking_uri)
        found = self._client.get_experiment_by_name(experiment)
        self._experiment = self._client.create_experiment(experiment) if found is None else found.experiment_id

    def trial_ended(self, study: Study, trial: Trial) -> None:
        """Log a trial to MLflow: its knobs as parameters, its figures as metrics, its state and reasons as tags."""
        tags = {_STUDY: study.study_id, _TRIAL: str(trial.number), "mlflow.parentRunId": self._study_run(study)}
        run = self._run(tags, f"{study.study_id} trial {trial.number}")
        for name, value in trial_values.parameters(trial).items():
            self._client.log_param(run, name, value)
        self._log(run, trial_values.figures(trial), trial_values.notes(trial))
        self._client.set_terminated(run, "FINISHED" if trial.state.is_feasible else "FAILED")

    def study_ended(self, study: Study) -> None:
        """Log a study's answer in a separate MLflow run for the study."""
        run = self._study_run(study)
        self._log(run, trial_values.answer_figures(study), trial_values.study_notes(study))
        self._client.set_terminated(run, "FINISHED" if study.state is StudyState.COMPLETE else "FAILED")

    def _study_run(self, study: Study) -> str:
        return self._run({_STUDY: study.study_id, _TRIAL: "none"}, study.study_id)

    def _run(self, tags: dict[str, str], name: str) -> str:
        """Return the id of the MLflow run that has these tags of study and trial; creates the run if there is none."""
        query = " and ".join(f"tags.`{key}` = '{tags[key]}'" for key in (_STUDY, _TRIAL))
        runs = self._client.search_runs([self._experiment], query, max_results=1)
        run = runs[0] if runs else self._client.create_run(self._experiment, tags=tags, run_name=name)
        return str(run.info.run_id)

    def _log(self, run: str, figures: dict[str, float], notes: dict[str, str]) -> None:
        for name, value in figures.items():
            self._client.log_metric(run, name, value)
        for name, text in notes.items():
            self._client.set_tag(run, f"shardtune.{name}", text[:_LONGEST_TAG])
