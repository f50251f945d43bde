"""Where a loss in chunks is searched: only where the logits of a micro batch make it matter, or where it is named."""

from typing import Any

import pytest

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.search.space import Space, build
from tests.support.values.tuner_inputs import cpu, gpus, llama

LONG = Workload(sequence_length=4096, global_batch=16)
SHORT = Workload(sequence_length=64, global_batch=16)


def space(model: str, workload: Workload, note: str | None = None, **knobs: Any) -> Space:
    cluster = cpu(2) if workload is SHORT else gpus()
    summary = llama(model).model_copy(update={"loss_note": note})
    return build(workload, cluster, summary, SpaceLimits(backends=("ddp",), knobs=knobs))


def losses(searched: Space) -> set[tuple[str, int]]:
    return {(config.loss, config.loss_chunk) for config in searched.enumerate()}


def test_a_wide_vocabulary_over_many_tokens_is_tried_in_chunks() -> None:
    assert losses(space("llama-3.1-8b", LONG)) == {("full", 1024), ("chunked", 1024)}


def test_a_small_model_keeps_its_space() -> None:
    assert losses(space("llama-tiny", SHORT)) == {("full", 1024)}


def test_a_model_whose_loss_is_its_own_is_not_tried_in_chunks() -> None:
    assert losses(space("llama-3.1-8b", LONG, note="your own code computes the loss")) == {("full", 1024)}


def test_whoever_names_it_gets_it_with_their_own_chunk() -> None:
    assert losses(space("llama-tiny", SHORT, loss="chunked", loss_chunk=48)) == {("chunked", 48)}


def test_naming_it_for_a_loss_of_ones_own_says_why_it_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"loss.*your own code computes the loss; use 'full'"):
        space("llama-tiny", SHORT, note="your own code computes the loss", loss="chunked")


def test_it_does_not_go_with_deepcompile() -> None:
    with pytest.raises(ValueError, match=r"loss \('chunked'\) with deepcompile \(true\)"):
        TrialConfig.model_validate({"strategy": {"kind": "zero", "stage": 3, "deepcompile": True}, "loss": "chunked"})


@pytest.mark.parametrize("chunk", [0, 15, -1, (1 << 20) + 1, 64.5, "64", True])
def test_a_chunk_that_is_no_number_of_tokens_is_rejected(chunk: object) -> None:
    with pytest.raises(ValueError, match="loss_chunk"):
        TrialConfig.model_validate({"strategy": {"kind": "ddp"}, "loss": "chunked", "loss_chunk": chunk})
