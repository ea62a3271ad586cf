"""Samples of the forward process, and a linear velocity in place of a network."""

import torch

from burnish.diffusion.algorithms.diffusion_dpo import DiffusionDPO
from burnish.diffusion.algorithms.forward_process import SFT
from burnish.diffusion.algorithms.matching import AWM, CRD, DGPO, DiffusionNFT
from burnish.types.rollout import Denoising, OfflineSamples, Prompt, Scored, Scores
from tests.support.schedules import plain, schedule

SIZE, GROUPS, DIM = 4, 3, 5
COUNT = SIZE * GROUPS
TIMES = schedule(10, shift=3.0).double()


def scored(*, missing=(), reward=None, seed: int = 3) -> Scored:
    none = torch.zeros(COUNT, 0, dtype=torch.float64)
    trace = Denoising(
        conditioning=plain(COUNT),
        latents=torch.randn(COUNT, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
        state=none[..., None], next_state=none[..., None], time=none, time_next=none, logprob=none, node=none.long(),
        schedule=TIMES,
    )  # fmt: skip
    reward = torch.arange(float(COUNT)).sin() if reward is None else torch.tensor(reward)
    gone = torch.zeros(COUNT, dtype=torch.bool)
    gone[list(missing)] = True
    return Scored(
        prompts=[Prompt(text=f"prompt {i // SIZE}") for i in range(COUNT)],
        group=torch.arange(COUNT) // SIZE, sample=torch.arange(COUNT) % SIZE, trace=trace,
        scores=Scores(
            reward=reward, missing=gone, components=reward[:, None], names=("r",), notes=[""] * COUNT
        ),
        update=2, version=1, seed=seed,
    )  # fmt: skip


def given(members: int, uids: str = "abc") -> OfflineSamples:
    count = len(uids)
    return OfflineSamples(
        conditioning=plain(count),
        latents=torch.randn(count, members, DIM, generator=torch.Generator().manual_seed(2), dtype=torch.float64),
        uid=list(uids), schedule=TIMES, update=2, version=1, seed=3,
    )  # fmt: skip


class Linear:
    """Roles whose velocities are x W + t, and .3 more for each 1 of guidance."""

    def __init__(self, *, moved: bool = True) -> None:
        generator = torch.Generator().manual_seed(5)
        draw = torch.randn(3, DIM, DIM, generator=generator, dtype=torch.float64) * 0.3
        self.weight = draw[0].clone().requires_grad_()
        matrices = {"policy": self.weight, "old": draw[1] if moved else self.weight.detach(), "reference": draw[2]}
        self.same, self.moved, self.on_policy, self.micro_batch_size = not moved, moved, True, 8
        self.decays: list[float] = []
        self.followed: list[str] = []
        self.optimizer_steps = 0
        for name, matrix in matrices.items():
            setattr(self, name, self._role(name, matrix))

    def _role(self, name, matrix):
        def predict(x, time, conditioning, *, guidance=None):
            assert len(conditioning) == len(x)
            return x @ matrix + time[:, None] + 0.3 * ((1.0 if guidance is None else guidance) - 1.0)

        return predict

    def lagged(self, name: str):
        return getattr(self, name)

    def is_policy(self, name: str) -> bool:
        return self.same

    def blend(self, name: str, decay: float, source: str = "policy") -> None:
        self.followed.append(name)
        self.decays.append(decay)


def total(algorithm, batch, roles, size=100):
    """The loss of an optimizer batch as the worker computes it, and its metrics."""
    value, metrics = torch.zeros((), dtype=torch.float64), {}
    for part in algorithm.micro_batches(batch, size):
        loss = algorithm.loss(part, roles)
        value = value + loss.total
        for name, (sum_, count) in loss.metrics.items():
            before = metrics.get(name, (0.0, 0.0))
            metrics[name] = (before[0] + float(sum_), before[1] + float(count))
    return value / algorithm.size(batch), metrics


ONLINE = [
    DiffusionNFT(beta=0.7, kl_coef=0.1, train_timesteps=3),
    DiffusionNFT(adaptive_weighting=False, train_timesteps=2, kl_coef=0.0, advantage_mode="binary"),
    AWM(weighting="t", kl_coef=0.1, old_kl_coef=0.2, train_timesteps=3, clip=0.5),
    AWM(weighting="ghuber", ghuber_power=0.4, clip=0.9, times="logit_normal", time_shift=3.0),
    DGPO(beta=2.0, clip=None, kl_coef=0.1, train_timesteps=3),
    DGPO(beta=2.0, clip=0.3, shared_noise=False, times="uniform", time_stratified=True),
    DGPO(beta=2.0, baseline="old", clip=0.3, clip_kl=True, kl_coef=0.1, reference_guidance=2.0),
    CRD(kl_coef=0.1, kl_adaptive=True, train_timesteps=3),
    CRD(temperature=0.3, matching="mse", baseline="reference", kl_coef=0.1, kl_guidance=2.0),
    DiffusionDPO(beta=3.0, label_smoothing=0.1, train_timesteps=2, sft_coef=0.3),
    DiffusionDPO(beta=3.0, kind="ipo", times="schedule"),
]
ALL = [*ONLINE, DiffusionDPO(online=False, beta=3.0, train_timesteps=2), SFT(train_timesteps=2)]
