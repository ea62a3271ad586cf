"""Ends of trajectories that gradients of a reward run through."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.flow.times import diffuse
from burnish.types.batch import Batch, Gathered, to_device
from burnish.types.columns import at, read
from burnish.types.rollout import Conditioning, Prompt, Scored, share_of
from burnish.utils import random

LEAST = 0.02  # noise level of a step that can still change a picture


@dataclass(kw_only=True)
class Ends(Batch):
    """The last denoising steps of samples: where they begin, and the times that they pass."""

    conditioning: Gathered[Conditioning]
    prompts: list[Prompt]  # [M]
    state: Tensor  # [M, ...] at the first of the times
    times: Tensor  # [M, K + 1] falling to 0
    share: Tensor = None  # type: ignore[assignment]  # [M] of a state's elements that are noised; 1 if not given

    def __post_init__(self) -> None:
        if self.share is None:
            self.share = self.state.new_ones(len(self.state))

    @classmethod
    def recorded(cls, scored: Scored) -> Ends:
        """From the first recorded step on, along the recorded times, and to 0 in one step where those end earlier."""
        trace = scored.trace
        times = torch.cat([trace.time, torch.zeros_like(trace.time[:, :1])], 1)
        return cls(
            conditioning=trace.conditioning,
            prompts=scored.prompts,
            state=read(trace.state[:, 0]),
            times=times,
            share=trace.share,
        )

    @classmethod
    def noised_again(cls, scored: Scored, copies: int, level: float | None = None) -> Ends:
        """Finished samples with fresh noise, several times each, and one step from there to the end.

        Args:
            scored: the samples.
            copies: of each.
            level: of the noise; None takes that of the last step which starts from enough of it to change anything.
        """
        trace = scored.trace
        rows = torch.arange(len(scored)).repeat_interleave(copies)
        keys: list[tuple[random.Part, ...]] = [
            (scored.seed, "renoise", scored.update, prompt.uid, sample, copy)
            for prompt, sample in zip(scored.prompts, scored.sample.tolist(), strict=True)
            for copy in range(copies)
        ]
        clean, noised = (read(at(value, rows)) for value in (trace.latents, trace.noised))
        noise = to_device(random.normal(clean.shape[1:], keys), clean.device)
        levels = trace.schedule[trace.schedule >= LEAST]
        start = to_device(levels[-1] if level is None else levels.new_tensor(level), clean.device)
        times = torch.stack([start, torch.zeros_like(start)]).expand(len(rows), 2).contiguous()
        return cls(
            conditioning=trace.conditioning.select(rows),
            prompts=[scored.prompts[row] for row in rows.tolist()],
            state=diffuse(clean, noise, times[:, 0], noised),
            times=times,
            share=share_of(noised),
        )
