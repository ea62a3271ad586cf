"""Trained weights that every rank has in full: adapters of a base that can't be sharded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from burnish.training.ranks import Ranks
from burnish.training.sharding import Shards

BUCKET = 1 << 24  # elements that are summed at once: 64 MiB


class Replicated(Shards):
    """No network is sharded, so ranks run theirs as often as each likes; only gradients are summed over them."""

    def __init__(self, ranks: Ranks, weights: Mapping[str, nn.Parameter]) -> None:
        """Args: ``weights`` are all that may be trained, the same on every rank."""
        super().__init__(ranks)
        self.weights = dict(weights)

    def learned(self) -> dict[str, float]:
        return {name: 1.0 for name, weight in self.weights.items() if weight.grad is not None}

    def settle_gradients(self, learned: Mapping[str, float]) -> None:
        """Sum the gradients over all ranks; a weight that received none on any rank has none."""
        for bucket in _buckets([weight for name, weight in self.weights.items() if name in learned]):
            found = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in bucket]
            flat = torch.cat([gradient.flatten().float() for gradient in found])
            torch.distributed.all_reduce(flat, group=self.ranks.group)
            summed = flat.split([gradient.numel() for gradient in found])
            for weight, gradient, total in zip(bucket, found, summed, strict=True):
                weight.grad = gradient.copy_(total.view_as(gradient))


def _buckets(weights: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """The weights in order, as many at once as fit into a bucket."""
    bucket: list[nn.Parameter] = []
    for weight in weights:
        if bucket and sum(one.numel() for one in bucket) + weight.numel() > BUCKET:
            yield bucket
            bucket = []
        bucket.append(weight)
    if bucket:
        yield bucket
