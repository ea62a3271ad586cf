"""PyTorch's own count of operations, with the attention of CPUs and the products of experts, which it doesn't know."""

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

aten = torch.ops.aten


def _forward(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


def _backward(_: Any, query: Any, key: Any, value: Any, *__: Any, **___: Any) -> int:
    return 2 * sdpa_flop_count(query, key, value)  # without the products that a kernel computes again


def _grouped(given: Any, other: Any, *_: Any, **__: Any) -> int:
    """Rows of experts by the weights of each; or, for their gradients, columns by rows."""
    return 2 * given[0] * given[1] * other[-1]


def torch_flops() -> FlopCounterMode:
    """A context that counts what really runs."""
    mapping = {
        aten._scaled_dot_product_flash_attention_for_cpu: _forward,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: _backward,
        aten._grouped_mm: _grouped,
    }
    return FlopCounterMode(display=False, custom_mapping=mapping)
