"""Links of a rank with host memory: what comes back is what was sent, and buffers are shared."""

import contextlib

import pytest
import torch

from shardtune.workers.blocks import host_link
from shardtune.workers.blocks.host_link import CpuLink, CudaLink


def test_a_cpu_ranks_host_memory_is_not_counted_as_the_devices() -> None:
    link, tensor = CpuLink(), torch.randn(5, 3)
    copy = link.send(tensor)
    assert torch.equal(copy, tensor) and copy.data_ptr() != tensor.data_ptr()
    back = link.fetch(copy)
    assert torch.equal(back, tensor)
    again = link.send(torch.ones(5, 3))
    # The buffer of the first is used again, and what came back is none of it.
    assert again.data_ptr() == copy.data_ptr() and torch.equal(back, tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_every_dtype_comes_back_as_it_was(dtype: torch.dtype) -> None:
    link, tensor = CpuLink(), torch.arange(24).to(dtype).view(2, 3, 4).transpose(0, 1)
    assert torch.equal(link.fetch(link.send(tensor)), tensor)


def test_rows_of_several_lengths_share_one_buffer_for_each_block() -> None:
    link, addresses = CpuLink(), set[int]()
    for length in (700, 1024, 9, 100, 513, 300):
        tensors = [torch.randn(length) for _ in range(3)]
        copies = [link.send(tensor) for tensor in tensors]
        addresses |= {copy.untyped_storage().data_ptr() for copy in copies}
        assert all(map(torch.equal, map(link.fetch, copies), tensors))
    assert len(addresses) == 3


def test_longer_rows_get_buffers_that_replace_the_shorter_ones() -> None:
    link = CpuLink()
    short = link.send(torch.zeros(5))
    longer = link.send(torch.ones(9))
    assert (short.untyped_storage().nbytes(), longer.untyped_storage().nbytes()) == (32, 64)
    link.fetch(short)
    assert link.send(torch.zeros(5)).untyped_storage().nbytes() == 64


class _Stream:
    def __init__(self, _device: object = None) -> None: ...

    def wait_stream(self, _stream: object) -> None: ...


def test_page_locked_memory_is_released_by_a_name_that_every_allowed_torch_has(monkeypatch: pytest.MonkeyPatch) -> None:
    released = list[str]()
    monkeypatch.delattr(torch.accelerator, "empty_host_cache", raising=False)
    monkeypatch.setattr(torch._C, "_host_emptyCache", lambda: released.append("all"), raising=False)
    host_link._release_page_locked()
    assert released == ["all"]


def test_a_gpus_buffer_is_used_again_only_after_the_wait_for_its_copy_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, stand_in in (("Stream", _Stream), ("current_stream", _Stream), ("stream", contextlib.nullcontext)):
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(host_link, "_release_page_locked", lambda: None)
    monkeypatch.setattr(host_link, "_page_locked", host_link._of_numpy)
    link = CudaLink(torch.device("cpu"))
    first = link.send(torch.ones(5))
    link.fetch(first)
    second = link.send(torch.zeros(5))
    assert torch.equal(first, torch.ones(5)) and second.data_ptr() != first.data_ptr()
    link.wait_until_fetched()
    assert link.send(torch.zeros(3)).data_ptr() == first.data_ptr()
