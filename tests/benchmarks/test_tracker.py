"""Predicted peaks against PyTorch's FSDP2 tracker on fake tensors; all of the issue's cases run in benchmarks.tracker."""

import pytest

pytest.importorskip("torch")

from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from benchmarks import tracker
from benchmarks.tracker import Case, compare
from tests.support.long_run import wide


@pytest.mark.parametrize(
    "case",
    [
        Case("gpt2-large", 1024, 8, 4, "none", 2),
        Case("qwen3-8b", 2048, 64, 1, "full", 2),
        Case("mixtral-8x7b", 2048, 8, 4, "none", 3),
        wide(Case("mixtral-8x7b", 2048, 64, 1, "full", 3)),
    ],
    ids=lambda case: f"{case.model}-{case.checkpointing}",
)
def test_total_is_within_five_percent_of_the_trace(case: Case) -> None:
    assert abs(compare(case)["error"]) <= 0.05


def test_models_of_the_process_keep_their_masks_afterwards():
    """A test of Gemma 3 on the same process compared ranks with a reference without its sliding window."""
    own = ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]
    with tracker._without_masks():
        assert ALL_MASK_ATTENTION_FUNCTIONS["sdpa"] is tracker._no_mask
    assert ALL_MASK_ATTENTION_FUNCTIONS["sdpa"] is own is not tracker._no_mask
