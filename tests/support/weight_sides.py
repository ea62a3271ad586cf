"""Workers that train and workers that sample, without models: the two sides of a publication."""

import os
import signal

import torch

from burnish.runtime.actor import RankInfo
from burnish.runtime.weight_transfer import Receiver, Sender


def weights(version: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(version)
    return {name: torch.randn(*shape, generator=generator) for name, shape in (("base", (20, 7)), ("lora.a", (3, 5)))}


class Trains:
    def __init__(self, place: RankInfo, bucket_mb: float):
        self.now = weights(0)
        self.sender = Sender(lambda full: self.now, rank=place.rank, bucket_mb=bucket_mb)

    def learn(self, version):
        self.now = weights(version)


class Samples:
    def __init__(self, place: RankInfo, bucket_mb: float):
        self.network = weights(0)
        self.receiver = Receiver(self.network, bucket_mb=bucket_mb)
        self.fill = self.receiver._fill

    def seen(self):
        return {name: tensor.tolist() for name, tensor in self.network.items()}

    def spoil_next(self):
        def spoil(buckets):
            *others, last = buckets
            last[-10] ^= 4
            yield from [*others, last]

        self.receiver._fill = lambda layout, version, buckets: self.fill(layout, version, spoil(buckets))

    def die_in_next(self):
        self.receiver._fill = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)

    def repair(self):
        self.receiver._fill = self.fill
