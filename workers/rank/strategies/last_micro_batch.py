"""Gradients that a backend would leave out of a step without an error, in the user's own code."""

from collections.abc import Iterable
from functools import partial

import torch
from torch import nn

from shardtune.workers.rank.classify import LostGradientError

ZERO_1 = (
    "ZeRO stage 1 with overlap_comm (true) would not average it over the ranks; set space.knobs.overlap_comm to false, "
    "leave stage 1 out of space.knobs.stage, or let each micro batch use the parameter"
)
FSDP_1 = (
    "FSDP1 with grad_sync (last) would not reduce it; set space.knobs.grad_sync to every, leave fsdp1 out of "
    "space.backends, or let each micro batch use the block"
)


class LastMicroBatchWatch:
    """Check that each parameter which gets a gradient in a step gets one in the step's last micro batch, too.

    Two backends reduce the gradients of a step in the hooks of its last micro batch only. A parameter that only earlier
    micro batches used keeps its rank's own gradient there, and the ranks train different weights, or the optimizer
    meets a gradient of another size:

    - ZeRO stage 1 with `overlap_comm` (DeepSpeed 0.19.8, `reduce_ready_partitions_and_remove_grads`); stages 2 and 3
      reduce in every micro batch,
    - FSDP1 under `no_sync` (torch 2.13, `_post_backward_hook` and `prepare_gradient_for_optim`); FSDP2 reduces units
      without a backward at its end (`_root_post_backward_final_callback`), and DDP all parameters.
    """

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], consequence: str) -> None:
        """Prepare the check.

        Args:
            parameters: parameters with their names; frozen ones are left out.
            consequence: what the backend would do with a gradient that the last micro batch lacks, and the remedy.
        """
        self._earlier, self._present = set[str](), set[str]()
        self._consequence = consequence
        for name, parameter in parameters:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(partial(self._note, name))  # type: ignore[no-untyped-call]

    def _note(self, name: str, _: torch.Tensor) -> None:
        self._present.add(name)

    def end_micro_batch(self, last: bool) -> None:
        """Note the end of a micro batch's backward.

        Raises:
            LostGradientError: the last micro batch gave no gradient to a parameter that an earlier one used.
        """
        if not last:
            self._earlier |= self._present
            self._present.clear()
            return
        lost = sorted(self._earlier - self._present)
        self._earlier.clear()
        self._present.clear()
        if lost:
            raise LostGradientError(
                f"{lost[0]} gets a gradient in some micro batches of a step and none in the last one, where "
                f"{self._consequence}"
            )
