"""Workers that train and workers that sample, without models: the two sides of a publication."""

import os
import signal

import torch

from burnish.language.vllm.apart.burnish_vllm.channel import Channel
from burnish.runtime.actor import RankInfo
from burnish.runtime.weights import Receiver, Sender


def weights(version: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(version)
    return {name: torch.randn(*shape, generator=generator) for name, shape in (("base", (20, 7)), ("lora.a", (3, 5)))}


class Trains:
    def __init__(self, place: RankInfo, bucket: int):
        self.now = weights(0)
        self.sender = Sender(lambda full: self.now, rank=place.rank, bucket=bucket)

    def learn(self, version):
        self.now = weights(version)


class Samples:
    def __init__(self, place: RankInfo, bucket: int):
        self.network = weights(0)
        self.receiver = Receiver(self.network, bucket=bucket)
        self.own = Channel.finish, self.receiver._buffers

    def seen(self):
        return {name: tensor.tolist() for name, tensor in self.network.items()}

    def spoil_next(self):
        def finish(channel):
            begun = channel._begun
            self.own[0](channel)
            if begun and len(begun[1]) == 64:  # the last one
                begun[1][-10] ^= 4

        Channel.finish = finish

    def die_in_next(self):
        self.receiver._buffers = lambda entries: os.kill(os.getpid(), signal.SIGKILL)

    def repair(self):
        Channel.finish, self.receiver._buffers = self.own
