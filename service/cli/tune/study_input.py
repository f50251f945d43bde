"""Read the study of `shardtune tune` from its file and options, and reject one that nothing could run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.service.cli import lengths_file, study_file
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.models import source as model_source
from shardtune.service.cli.processes import detect_inventory
from shardtune.service.cli.tune.options import TuneOptions

if TYPE_CHECKING:
    from shardtune.service.cli.tune import early_checks
else:
    # It imports the service's checks, which a file that cannot be read need not wait for.
    early_checks = LazyModule("shardtune.service.cli.tune.early_checks")


def read(options: TuneOptions, say: Callable[[str], None]) -> StudyRequest:
    """Read the study, with the options that replace its values; `say` receives a line for each of them.

    Raises:
        InputError: there is no study, or a field is missing, unknown or wrong.
    """
    if options.study is None:
        raise InputError(
            "STUDY (missing): give a study file, a model's config.json or folder, or its name, such as "
            "examples/llama-tiny.json or Qwen/Qwen3-8B"
        )
    named = model_source.named_model(str(options.study)) if model_source.is_name(str(options.study)) else None
    values = {} if named is not None else study_file.read_json_object(options.study)
    data = lengths_file.option_values(options.data, options.layout)
    target = None if options.target is None else study_file.read_target(options.target)
    if named is not None or study_file.is_bare_config(values):
        # Before the seconds in which the hardware is detected.
        early_checks.check_architecture(study_file.bare_model(named or values))
        inventory = detect_inventory(options.ranks, options.hosts)
        spec, words = study_file.default_study(named or values, inventory, data, target)
        if spec.model.hub is not None:
            say(f"model {spec.model.hub.id} at commit {spec.model.hub.revision}")
        say(words)
    else:
        spec = study_file.validate_study(values, options.study.parent)
    spec, replaced = study_file.with_options(
        spec,
        ranks=options.ranks,
        max_trials=options.max_trials,
        memory_gib=options.memory_gib,
        adapter=options.adapter,
        data=data,
        target=target,
    )
    if options.wait_for_quiet_min is not None:
        spec = spec.model_copy(update={"wait_for_quiet_s": 60 * options.wait_for_quiet_min})
    for line in replaced:
        say(line)
    return spec


def check(spec: StudyRequest, options: TuneOptions) -> None:
    """Reject a study that no worker could run.

    Raises:
        InputError: names field, value and remedy.
    """
    early_checks.check_own_code(spec.model, options.allowed)
    early_checks.check_architecture(spec.model)
    if not options.hosts:
        early_checks.check_study(spec, options.ranks)
