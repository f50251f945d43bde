"""Where a loss in chunks is searched: only where the logits of a micro batch make it matter, or where it is named."""

from typing import Any

import pytest

from shardtune.api_schemas.protocol import CannotExpress, expressed
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.search.space import Space, build
from tests.support.values.tuner_inputs import cpu, gpus, llama

LONG = Workload(sequence_length=4096, global_batch=16)
SHORT = Workload(sequence_length=64, global_batch=16)


def space(
    model: str, workload: Workload, note: str | None = None, allow_compile: bool | None = None, **knobs: Any
) -> Space:
    cluster = cpu(2) if workload is SHORT else gpus()
    summary = llama(model).model_copy(update={"loss_note": note})
    return build(workload, cluster, summary, SpaceLimits(backends=("ddp",), knobs=knobs, allow_compile=allow_compile))


def compiled(searched: Space) -> set[tuple[str, bool]]:
    return {(config.loss, config.loss_compile) for config in searched.enumerate()}


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


def test_compiled_chunks_are_tried_on_gpus_where_chunks_are() -> None:
    both = {("full", False), ("chunked", False), ("chunked", True)}
    assert compiled(space("llama-3.1-8b", LONG)) == both
    assert compiled(space("llama-3.1-8b", LONG, allow_compile=False)) == both - {("chunked", True)}
    assert compiled(space("llama-3.1-8b", LONG, note="your own code computes the loss")) == {("full", False)}


def test_on_cpu_ranks_compiled_chunks_are_tried_only_if_they_are_named() -> None:
    assert compiled(space("llama-tiny", SHORT, allow_compile=True, loss="chunked")) == {("chunked", False)}
    assert compiled(space("llama-tiny", SHORT, loss_compile=True)) == {("chunked", True)}
    named = space("llama-tiny", SHORT, loss=["full", "chunked"], loss_compile=[False, True])
    assert compiled(named) == {("full", False), ("chunked", False), ("chunked", True)}
    # The other blocks of a study are not compiled for it.
    assert {config.compile for config in named.enumerate()} == {False}


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ({"loss": "full"}, r"loss \('full'\) leaves nothing to search: .*loss_compile \(true\) needs it"),
        ({"note": "your own code computes the loss"}, r"loss_compile .*your own code computes the loss; use 'full'"),
    ],
)
def test_compiled_chunks_without_chunks_leave_nothing_to_search(others: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        space("llama-tiny", SHORT, loss_compile=True, **others)


def test_a_compiled_loss_of_all_logits_is_rejected_with_field_value_and_remedy() -> None:
    with pytest.raises(ValueError, match=r"loss_compile \(true\) .*loss \('full'\) .*to 'chunked', or .* to false"):
        TrialConfig.model_validate({"strategy": {"kind": "ddp"}, "loss_compile": True})


def test_compiled_chunks_go_with_context_parallelism_and_offload_which_compiled_blocks_do_not() -> None:
    chunks = {"strategy": {"kind": "ddp"}, "loss": "chunked", "loss_compile": True}
    for beside in ({"context_parallel": 2}, {"activation_checkpointing": "full", "activation_offload": True}):
        config = TrialConfig.model_validate(chunks | beside)
        assert config.compiles and not config.without_compile().compiles


def test_a_worker_of_the_first_protocol_gets_no_compiled_chunks() -> None:
    config = TrialConfig.model_validate({"strategy": {"kind": "ddp"}, "loss": "chunked"})
    assert "loss_compile" not in expressed(config, 1)
    stored = {name: value for name, value in config.model_dump().items() if name != "loss_compile"}
    assert TrialConfig.model_validate(stored).content_key() == config.content_key()
    compiles = config.model_copy(update={"loss_compile": True})
    assert compiles.describe() == "DDP, loss in compiled chunks of 1,024 tokens, micro batch 1"
    with pytest.raises(CannotExpress, match="loss_compile"):
        expressed(compiles, 1)
