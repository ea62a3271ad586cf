"""Flow-GRPO (Liu et al. 2025, arXiv:2505.05470) in one file, with nothing but PyTorch, in a few seconds.

A generator of points has learned to draw from eight spots on a circle, and ignores what it is told.
Reinforcement learning teaches it to listen: asked for "north", it shall draw one of the northern spots.
Nobody shows it such a point; it only hears, for each point that it draws, whether that one was right.
The verbs are those of Burnish: collect, credit, update.

    python examples/tiny_flow_grpo.py

Convention: x_t = (1 - t) x_0 + t eps. The network predicts the velocity v = eps - x_0; t falls from 1 to 0.
"""

import copy
import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

PROMPTS = {"north": (0.0, 1.0), "east": (1.0, 0.0), "south": (0.0, -1.0), "west": (-1.0, 0.0)}
WANTED = torch.tensor(list(PROMPTS.values()))  # [4, 2] unit vectors
ANGLES = torch.arange(8) * (2 * math.pi / 8) + math.pi / 8
SPOTS = 2 * torch.stack([ANGLES.cos(), ANGLES.sin()], dim=1)  # [8, 2] where the data is, each 0.1 wide

STEPS = 10  # denoising steps; all but the last are stochastic, and learned from
NOISE = 0.7  # strength of the noise that makes samples of a group differ, and gives every step a probability
GROUP = 64  # samples per prompt that are compared with each other
UPDATES = 100
EPOCHS = 2  # optimizer steps on the same samples: from the second on the policy is not the one that sampled
CLIP = 0.2  # how far a step's probability may move before its sample says nothing more
KL_COEF = 0.1  # keeps the points in the spots, which the reward does not ask for; try 0


class Velocity(nn.Module):
    """velocity(x, t, prompt): a small network in place of a diffusion transformer."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.prompt = nn.Embedding(len(PROMPTS), 16)
        self.body = nn.Sequential(
            nn.Linear(2 + 5 + 16, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2),
        )  # fmt: skip

    def forward(self, x: Tensor, t: Tensor, prompt: Tensor) -> Tensor:
        waves = [t, *((k * math.pi * t).sin() for k in (1, 2)), *((k * math.pi * t).cos() for k in (1, 2))]
        velocity: Tensor = self.body(torch.cat([x, torch.stack(waves, dim=1), self.prompt(prompt)], dim=1))
        return velocity


def pretrain(network: Velocity, steps: int = 2500) -> None:
    """Flow matching: predict eps - x_0 where the two are mixed. The prompt says nothing about the point."""
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        clean = SPOTS[torch.randint(8, (512,))] + 0.1 * torch.randn(512, 2)
        noise, t = torch.randn(512, 2), torch.rand(512)
        noisy = (1 - t[:, None]) * clean + t[:, None] * noise
        loss = (network(noisy, t, torch.randint(4, (512,))) - (noise - clean)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def transition(velocity: Tensor, x: Tensor, t: Tensor, t_next: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Mean [M, 2] and standard deviation [M, 1] of a stochastic step (eq. 9); without noise it is Euler's.

    Noise is added, and the drift takes away just as much: every x_t is distributed as without it.
    """
    t, t_next = t[:, None], t_next[:, None]
    diffusion = noise * (t / (1 - t.clamp(max=1 - 1 / STEPS))).sqrt()  # would be infinite at t = 1
    drift = velocity + diffusion**2 / (2 * t) * (x + (1 - t) * velocity)
    return x + (t_next - t) * drift, diffusion * (t - t_next).sqrt()


def log_prob(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """How likely a step was to land at x: the mean over its elements, as the field does. [M]"""
    return (-((x - mean) ** 2) / (2 * std**2) - std.log() - 0.5 * math.log(2 * math.pi)).mean(dim=1)


class Step(NamedTuple):
    """One stochastic denoising step of every sample: what can be learned from."""

    state: Tensor  # [B, 2] where it began
    next_state: Tensor  # [B, 2] where it ended
    time: Tensor  # [B]
    time_next: Tensor  # [B]
    logprob: Tensor  # [B] under the weights that sampled


class Scored(NamedTuple):
    """Samples with rewards. Samples of one prompt are a group: they are compared with each other."""

    prompt: Tensor  # [B]
    latents: Tensor  # [B, 2] the finished points
    steps: list[Step]
    reward: Tensor  # [B]


@torch.no_grad()
def collect(policy: Velocity, samples: int, noise: float) -> Scored:
    """Carry noise to points, so many for every prompt, and have them judged."""
    prompt = torch.arange(len(PROMPTS)).repeat_interleave(samples)
    x, steps = torch.randn(len(prompt), 2), []
    for t, t_next in pairwise(torch.linspace(1, 0, STEPS + 1).expand(len(x), -1).unbind(1)):
        level = noise if t_next[0] > 0 else 0.0  # nothing is left to stray at t = 0
        mean, std = transition(policy(x, t, prompt), x, t, t_next, level)
        landed = mean + std * torch.randn_like(x)
        if level > 0:
            steps.append(Step(x, landed, t, t_next, log_prob(landed, mean, std)))
        x = landed
    return Scored(prompt, x, steps, judge(x, prompt))


def judge(x: Tensor, prompt: Tensor) -> Tensor:
    """The reward: 1 within 45 degrees of the direction that was asked for, else 0. [B]"""
    cosine: Tensor = (x / x.norm(dim=1, keepdim=True) * WANTED[prompt]).sum(dim=1)
    return (cosine > math.sqrt(0.5)).float()


def credit(scored: Scored) -> Tensor:
    """Advantages [B]: reward minus the mean of its group, over the group's standard deviation."""
    reward = scored.reward.view(len(PROMPTS), -1)
    advantage = (reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True, correction=0) + 1e-4)
    return advantage.flatten().clamp(-5, 5)


def clipped_surrogate(logprob: Tensor, old: Tensor, advantage: Tensor) -> Tensor:
    """Make good steps likelier and bad ones less likely, but not by more than CLIP at once (eq. 5). [M]"""
    ratio = (logprob - old).exp()
    return torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - CLIP, 1 + CLIP))


def update(
    policy: Velocity, reference: Velocity, optimizer: torch.optim.Optimizer, scored: Scored, advantage: Tensor
) -> dict[str, float]:
    """Learn from every step of every sample at once: each is one row of a forward."""
    x, landed, t, t_next, old = (torch.cat(column) for column in zip(*scored.steps, strict=True))
    prompt, advantage = scored.prompt.repeat(len(scored.steps)), advantage.repeat(len(scored.steps))
    with torch.no_grad():
        reference_mean, _ = transition(reference(x, t, prompt), x, t, t_next, NOISE)
    for _ in range(EPOCHS):
        mean, std = transition(policy(x, t, prompt), x, t, t_next, NOISE)
        logprob = log_prob(landed, mean, std)
        loss = clipped_surrogate(logprob, old, advantage)
        kl = ((mean - reference_mean) ** 2 / (2 * std**2)).mean(dim=1)
        optimizer.zero_grad()
        (loss + KL_COEF * kl).mean().backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    return {"reward": scored.reward.mean().item(), "kl": kl.mean().item()}


def show(policy: Velocity, title: str) -> None:
    """Draw 500 points per prompt without noise; print how good they are, and an image for two prompts."""
    drawn = collect(policy, samples=500, noise=0.0)
    off = torch.cdist(drawn.latents, SPOTS).min(dim=1).values.mean()
    print(f"\n{title}: reward {drawn.reward.mean():.3f}, distance to the nearest spot {off:.3f}")
    north, east = (plot(drawn.latents[drawn.prompt == p]) for p in (0, 1))
    print(f"{'asked for north':36}asked for east")
    print("\n".join(f"{a:36}{b}" for a, b in zip(north, east, strict=True)))


def plot(points: Tensor, columns: int = 31, rows: int = 15) -> list[str]:
    """Where the points are, as text: from . for a few to @ for many."""
    column = ((points[:, 0] + 2.5) / 5 * columns).long().clamp(0, columns - 1)
    row = ((2.5 - points[:, 1]) / 5 * rows).long().clamp(0, rows - 1)
    count = torch.bincount(row * columns + column, minlength=rows * columns).view(rows, columns)
    shades = " .:+#@"
    return ["".join(shades[min(int(n) // 4 + (n > 0), 5)] for n in line) for line in count]


def main() -> None:
    """Pre-train, then reinforce."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    policy = Velocity()
    pretrain(policy)
    show(policy, "before")
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    for step in range(1, UPDATES + 1):
        scored = collect(policy, GROUP, NOISE)
        advantage = credit(scored)
        metrics = update(policy, reference, optimizer, scored, advantage)
        if step % 20 == 0:
            print(f"update {step}: reward {metrics['reward']:.3f}, kl {metrics['kl']:.3f}")
    show(policy, "after")


if __name__ == "__main__":
    main()
