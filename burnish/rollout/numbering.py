"""Which samples there are: the same prompt and sample number always mean the same random draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from burnish.types.prompt import Prompt


def numbered(
    prompts: Sequence[Prompt], n: int, seen: Counter[str] | None = None
) -> tuple[list[Prompt], Tensor, Tensor]:
    """``n`` rows for each prompt: their prompts, groups and sample numbers.

    A prompt that occurs again gets further samples, not the same ones.

    Args:
        prompts: each makes a group.
        n: samples of each.
        seen: samples that a prompt has already, by its uid; those made here are added.

    Returns:
        Prompts [B], group [B] long, sample [B] long.
    """
    seen = Counter() if seen is None else seen
    rows: list[Prompt] = []
    group: list[int] = []
    sample: list[int] = []
    for g, prompt in enumerate(prompts):
        first = seen[prompt.uid]
        seen[prompt.uid] += n
        rows += [prompt] * n
        group += [g] * n
        sample += range(first, first + n)
    return rows, torch.tensor(group), torch.tensor(sample)
