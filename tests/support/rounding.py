"""Another kind of CPU: its kernels round otherwise for every shape, as those of real ones may.

Which kernel multiplies two matrices, and in which order it adds up, depends on their shapes and on the machine. So
what is computed in batches of one shape and of another is equal up to rounding, on one machine to the last bit and on
the next one not. Here every product is off by what its shape says, so that a test that demands more is found out.
"""

import zlib
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

OFF = 2.0**-23  # about a last bit of float32
KINDS = 2  # ways of rounding that shapes are shared out among
aten = torch.ops.aten
KERNELS = {
    aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.convolution, aten.linear,
    aten._scaled_dot_product_flash_attention_for_cpu,
}  # fmt: skip


class OtherRounding(TorchDispatchMode):
    """Entered around a test."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.overloadpacket in KERNELS:
            for one in found if isinstance(found, tuple) else (found,):
                if isinstance(one, Tensor) and one.dtype == torch.float32 and one.ndim:
                    shape = (one.numel() // max(one.shape[-1], 1), one.shape[-1])  # rows and columns
                    one.mul_(1 + OFF * (zlib.crc32(repr(shape).encode()) % KINDS))
        return found
