"""Load balancing of mixture-of-experts models, as a sum over tokens.

The published loss is a product of two means over the batch, experts' loads and router probabilities, so means of it
over micro-batches depend on how the batch was cut. But the load has no gradient: with the load of the whole
optimizer batch given, the rest is a sum over tokens that can be cut anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def expert_load(router_logits: Sequence[Tensor], mask: Tensor, top_k: int) -> Tensor:
    """How many chosen tokens each expert gets, over all layers; sums of it over micro-batches are exact.

    Args:
        router_logits: per layer [B * T, E], as transformers returns them.
        mask: [B, T] bool, tokens that are not padding.
        top_k: experts per token.

    Returns:
        [E] float64.
    """
    rows, experts = mask.flatten(), router_logits[0].shape[-1]
    chosen = torch.cat([layer[rows].topk(top_k, -1).indices.flatten() for layer in router_logits])
    return torch.bincount(chosen, minlength=experts).double()


def load_balancing(router_logits: Sequence[Tensor], mask: Tensor, load: Tensor, top_k: int) -> Tensor:
    """The Switch Transformer's auxiliary loss (eq. 4), as transformers defines it: all layers as one.

    Divided by the number of tokens of the batch that ``load`` was counted on, the sum is transformers'
    ``load_balancing_loss_func`` of that batch, and so is its gradient.

    Args:
        router_logits: per layer [B * T, E].
        mask: [B, T] bool, tokens that are not padding.
        load: [E] from ``expert_load``, summed over the micro-batches and ranks of the optimizer batch.
        top_k: experts per token.

    Returns:
        [B, T] float32, 0 where masked; top_k where all experts are used alike.
    """
    rows, experts = mask.flatten(), router_logits[0].shape[-1]
    probability = torch.stack([layer[rows].float().softmax(-1) for layer in router_logits]).mean(0)
    share = (load * top_k / load.sum().clamp_min(1)).float()
    values = torch.zeros(len(rows), device=mask.device)
    return values.masked_scatter(rows, experts * (probability * share).sum(-1)).view_as(mask)
