"""Answer to share: the page in Markdown and the picture."""

from xml.etree import ElementTree

import pytest

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import Verdict
from shardtune.api_schemas.studies.verdicts import WholeStepCheck
from shardtune.service.cli.answer_to_share import page, picture
from tests.support.values.synthetic_studies import with_adapter, with_muon
from tests.unit.service.cli.output.shown_studies import CONFIRMED, UNBEATEN, study


def test_the_page_to_share_has_verdict_configurations_changes_and_reasons() -> None:
    changes = "# Changes: DDP → ZeRO\n\n| setting | today |\n|---|---|\n"
    text = page.as_markdown(study(), UNBEATEN, (), changes)
    for words in ("# ", "**not faster", "| recommended | ", "| fastest candidate | ", "## Changes: DDP", "## Reasons"):
        assert words in text
    assert "Changes" not in page.as_markdown(study(), UNBEATEN, (), None)


def test_the_page_to_share_says_which_speeds_it_lists() -> None:
    whole = WholeStepCheck(
        trial_number=0,
        accumulations=(2, 4),
        micro_batches=32,
        step_time_s=1.0,
        extended_step_time_s=1.0,
        extension_error=0.0,
        is_confirmed=True,
    )
    checked = UNBEATEN.model_copy(update={"whole_steps": (whole,)})
    shown = page.as_markdown(study(), checked, (), None)
    assert "| tokens/s/GPU |" in shown and "baseline 942 tokens/s/GPU in the run that timed whole steps" in shown
    assert "candidate 950 tokens/s/GPU in " in shown and "speeds, which" in shown
    assert "| tokens/s/GPU, median of all runs |" in page.as_markdown(study(), UNBEATEN, (), None)


def test_the_picture_to_share_is_a_drawing_that_loads_nothing_and_runs_nothing() -> None:
    named = study().spec.model.model_copy(update={"name": "a <script>alert(1)</script>\x1b[31m & b"})
    spec = study().spec.model_copy(update={"model": named})
    drawing = picture.as_svg(study(spec=spec), UNBEATEN, ())
    root = ElementTree.fromstring(drawing)
    shown = "".join(root.itertext()).replace("\xa0", " ")
    assert root.tag.endswith("svg") and not any(element.tag.endswith("script") for element in root.iter())
    assert "http" not in drawing.replace("http://www.w3.org/2000/svg", "")
    for words in ("Not faster", "recommended", "fastest candidate", "sequence 64"):
        assert words in shown, words


@pytest.mark.parametrize("form", ["page", "picture"])
def test_what_is_shared_names_an_adapter_and_an_optimizer_other_than_the_default(form: str) -> None:
    def shown(of: Study) -> str:
        if form == "page":
            return page.as_markdown(of, UNBEATEN, (), None)
        return _text_of(picture.as_svg(of, UNBEATEN, ()))

    adapted, muon = with_adapter(study(), {"kind": "lora", "rank": 8}), with_muon(study())
    assert ", LoRA r=8, on" in shown(adapted) and ", Muon, on" in shown(muon)
    assert "LoRA" not in shown(study()) and "AdamW" not in shown(study())


def _text_of(drawing: str) -> str:
    return "".join(ElementTree.fromstring(drawing).itertext()).replace("\xa0", " ")


def test_the_page_to_share_recommends_nothing_that_a_busy_machine_left_open() -> None:
    busy = CONFIRMED.model_copy(update={"verdict": Verdict.TOO_BUSY})
    text = page.as_markdown(study(), busy, (), None)
    assert "| candidate | ZeRO-2" in text and "| recommended |" not in text
    assert "| recommended | ZeRO-2" in page.as_markdown(study(), CONFIRMED, (), None)
