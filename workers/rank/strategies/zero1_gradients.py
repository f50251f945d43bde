"""Gradients that DeepSpeed's ZeRO stage 1 would leave out of a step without an error, in the user's own code."""

from functools import partial

import torch
from torch import nn

from shardtune.workers.rank.classify import LostGradientError


class LastMicroBatchWatch:
    """Check that each parameter which gets a gradient in a step gets one in the step's last micro batch, too.

    With `overlap_comm`, ZeRO stage 1 reduces the gradients of a step in the hooks of its last micro batch. A parameter
    that only earlier micro batches used keeps its rank's own gradient there, and the ranks train different weights
    (DeepSpeed 0.19.8, `reduce_ready_partitions_and_remove_grads`). Stages 2 and 3 reduce in every micro batch.
    """

    def __init__(self, model: nn.Module) -> None:
        self._earlier, self._present = set[str](), set[str]()
        for name, parameter in model.named_parameters():
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
                f"{lost[0]} gets a gradient in some micro batches of a step and none in the last one, where ZeRO stage 1 "
                "with overlap_comm (true) would not average it over the ranks; set space.knobs.overlap_comm to false, "
                "leave stage 1 out of space.knobs.stage, or let each micro batch use the parameter"
            )
