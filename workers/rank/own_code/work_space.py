"""Work space of operators: memory that a kernel takes while it runs, which tensors without values do not show."""

from collections.abc import Sequence
from typing import Any

import torch


def of_operator(func: Any, args: Sequence[Any], outputs: Sequence[torch.Tensor]) -> int:
    """Bytes that an operator needs at its peak, its results included; 0 for operators of which nothing but the size of
    the results is known."""
    name = str(func.overloadpacket)
    # oneDNN copies operands into its own layout, and results out of it (torch 2.13 on x86, from traces of allocations).
    if name == "aten.convolution":
        image, weight, output = _size(args[0]), _size(args[1]), _size(outputs[0])
        return max(image + weight + output, 2 * output)
    if name == "aten.convolution_backward":
        gradient, image, weight = (_size(operand) for operand in args[:3])
        needs_input = bool(args[-1][0])
        # First the gradient of the image, then that of the weight, with both operands copied.
        of_image = max(gradient + weight + image, 2 * image) if needs_input else 0
        return max(of_image, image * needs_input + gradient + image + weight)
    return 0


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
