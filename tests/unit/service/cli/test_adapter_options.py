"""`--lora` and `--last-layers`: an adapter beside any study or model, and the command that is named next has it again."""

from pathlib import Path

import pytest

from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.training.adapters import LastLayers, Lora
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.options import adapter_options
from shardtune.service.cli.plan import planner
from shardtune.service.cli.predict import lines, model_argument, predictor
from shardtune.service.cli.tune import continuation, early_checks, study_input
from shardtune.service.cli.tune.options import TuneOptions

OPTIONS = TuneOptions(Path("study.json"), None, None, None, False, Path(".shardtune"), Path("best"), False)
STUDY = StudyRequest(model="llama-tiny", workload={"sequence_length": 64, "global_batch": 8})


def with_adapter(study: StudyRequest, adapter: Lora | LastLayers) -> tuple[StudyRequest, list[str]]:
    return study_input.with_options(study, adapter=adapter)


def test_lora_has_twice_its_rank_as_alpha() -> None:
    assert adapter_options(16, None) == Lora()
    assert adapter_options(8, None) == Lora(rank=8, alpha=16)
    assert adapter_options(None, 2) == LastLayers(layers=2)
    assert adapter_options(None, None) is None
    assert adapter_options(None, None, 8) == Lora(rank=8, alpha=16, quantization="nf4")
    assert adapter_options(None, None, None, 8) == Lora(rank=8, alpha=16, dora=True)


def test_options_of_several_adapters_exclude_each_other() -> None:
    with pytest.raises(InputError, match=r"--lora \(16\) and --qlora \(8\) exclude each other; leave out one"):
        adapter_options(16, None, 8)
    with pytest.raises(InputError, match=r"exclude each other; leave out all but one"):
        adapter_options(16, 2, 8)
    with pytest.raises(InputError, match=r"--qlora \(0\) must be at least 1"):
        adapter_options(None, None, 0)


@pytest.mark.parametrize(
    ("lora", "layers", "message"),
    [
        (16, 2, r"--lora \(16\) and --last-layers \(2\) exclude each other"),
        (0, None, r"--lora \(0\) must be at least 1"),
        (9999, None, r"--lora \(9999\) must be at most 4096"),
        (10**400, None, r"--lora \(10+\) must be at most 4096"),
        (None, 0, r"--last-layers \(0\) must be at least 1"),
    ],
)
def test_numbers_out_of_range_are_rejected(lora: int | None, layers: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        adapter_options(lora, layers)


def test_the_option_replaces_the_studys_adapter_and_says_so() -> None:
    adapted, silent = with_adapter(STUDY, Lora())
    assert adapted.workload.adapter == Lora() and silent == []
    again, said = with_adapter(adapted, LastLayers(layers=1))
    assert again.workload.adapter == LastLayers(layers=1)
    assert said == ["last layer replaces the study's LoRA r=16"]


def test_a_study_with_another_optimizer_is_rejected() -> None:
    study = StudyRequest(model="llama-tiny", workload={"sequence_length": 64, "global_batch": 8, "optimizer": "muon"})
    with pytest.raises(InputError, match=r"updates whole matrices.*use adamw"):
        with_adapter(study, Lora())


def test_a_target_that_matches_nothing_ends_before_anything_starts() -> None:
    study, _ = with_adapter(STUDY, Lora(targets=("q_porj",)))
    with pytest.raises(InputError, match="did you mean q_proj"):
        early_checks.check_study(study, 2)


def test_the_next_command_has_the_adapter_again() -> None:
    lora, last, qlora, dora = (
        TuneOptions(**{**vars(OPTIONS), "adapter": adapter})
        for adapter in (
            Lora(rank=8, alpha=16),
            LastLayers(layers=2),
            Lora(rank=8, alpha=16, quantization="nf4"),
            Lora(rank=8, alpha=16, dora=True),
        )
    )
    assert dora.from_the_start() == "shardtune tune study.json --dora 8"
    assert qlora.from_the_start() == "shardtune tune study.json --qlora 8"
    assert lora.from_the_start() == "shardtune tune study.json --lora 8"
    assert last.from_the_start() == "shardtune tune study.json --last-layers 2"
    resumed = TuneOptions(**{**vars(lora), "study": None, "resume": True})
    with pytest.raises(InputError, match=r"--lora \(8\) would change the study that --resume continues"):
        continuation.check_unchanged(resumed)


def test_a_study_file_with_an_adapter_is_predicted_with_it_and_not_planned(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    adapted, _ = with_adapter(STUDY, Lora())
    path.write_text(adapted.model_dump_json())
    subject = model_argument.read_model(str(path))
    assert subject.values["adapter"] == Lora()
    with pytest.raises(InputError, match=r"workload.adapter \(LoRA r=16\) is not planned"):
        planner.plannable_values(subject.values)


def test_the_printed_table_says_what_is_trained(capsys: pytest.CaptureFixture[str]) -> None:
    model = model_argument.ModelArgument({"model": "llama-3.1-8b"})
    options = predictor.PredictOptions(model, "8xh100", None, 1, None, None, top=0, adapter=Lora())
    lines.show(predictor.predict(options))
    assert "LoRA r=16 (41.94 million trained)" in capsys.readouterr().out.replace("\n", " ")
