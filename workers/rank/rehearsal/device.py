"""Device of a rehearsed rank: parameters get sizes and no values."""

import contextlib

from torch._subclasses.fake_tensor import FakeTensorMode

from shardtune.workers.rank.device import CpuDevice


class RehearsedDevice(CpuDevice):
    """Device of a rehearsed rank (one that runs on tensors without values): a CPU on which tensors have no memory.

    It is not CUDA, because a torch built for CPUs cannot fill tensors of a GPU, and because the host's GPUs must stay
    free for trials.
    """

    def __init__(self) -> None:
        # Tensors of the batch are real and mix with those without values.
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)

    def materializing(self) -> contextlib.AbstractContextManager[object]:
        return self.mode
