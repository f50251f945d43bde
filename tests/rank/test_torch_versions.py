"""Names that versions of torch lack or call otherwise: ranks do without them, or say which version has them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.numa import binding

from shardtune.workers.blocks import fsdp2_calls
from shardtune.workers.rank.device import index_argument
from shardtune.workers.rank.rehearsal import peers


def _of_torch_2_13(*, gpu_index: int, numa_options: object) -> None: ...


def _of_torch_2_14(*, device_index: int, numa_options: object) -> None: ...


def test_cores_are_bound_by_the_name_that_torch_has_for_the_device() -> None:
    assert index_argument(_of_torch_2_13) == "gpu_index"
    assert index_argument(_of_torch_2_14) == "device_index"
    installed = binding._maybe_apply_numa_binding_to_current_process
    assert index_argument(installed) in installed.__code__.co_varnames


def test_a_rehearsal_needs_no_vote_of_stages_where_torch_holds_none() -> None:
    class ScheduleOfTorch215: ...

    with peers.agreeing_stages(ScheduleOfTorch215):
        assert not hasattr(ScheduleOfTorch215, "_warmup_p2p")
    assert not hasattr(ScheduleOfTorch215, "_warmup_p2p")


def test_a_method_that_torch_lacks_is_named_with_the_version_that_has_it() -> None:
    calls: list[Any] = []
    model = SimpleNamespace(set_separate_reduce_scatter_group=calls.append)
    fsdp2_calls.apply(model, {"set_separate_reduce_scatter_group": True})
    assert calls == [True]
    with pytest.raises(
        ValueError, match=r"^separate_reduce_scatter_group \(true\) needs .*; install torch 2\.13"
    ) as error:
        fsdp2_calls.apply(SimpleNamespace(), {"set_separate_reduce_scatter_group": True})
    assert torch.__version__ in str(error.value)
