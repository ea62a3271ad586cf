"""Optimizers and learning rates by name, as recipes choose them; PyTorch is imported when one is made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from burnish.registry import options, register
from burnish.rl.algorithm import Part

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from burnish.options import OptimizerOptions

Parameters = Mapping[str, "nn.Parameter"]  # by their names in the network


@options
class OptimizerPart(Part):
    """Base of optimizers: what holds of them."""

    sharded: ClassVar[bool] = True  # steps weights that ranks hold in shards


class OptimizerFunction(Protocol):
    """What a function registered as an "optimizer" is called with."""

    def __call__(self, parameters: Parameters, options: OptimizerOptions) -> Optimizer | Sequence[Optimizer]:
        """Trained weights by name, and the section optimizer, to what steps them. The learning rate of every group of
        parameters is set before each step, in the proportion that groups begin with."""


@options
class SchedulePart(Part):
    """Base of learning rates."""

    moves: ClassVar[bool] = True  # it is not the same at all steps


class ScheduleFunction(Protocol):
    """What a function registered as a "learning rate" is called with."""

    def __call__(self, done: float, step: int) -> float:
        """After the warm-up, what is done of the run, 0 to 1, and the number of steps, to a share of the way from
        min_lr to lr."""


@register("optimizer", "adamw")
def adamw(parameters: Parameters, options: OptimizerOptions) -> Optimizer:
    """AdamW."""
    import torch

    return torch.optim.AdamW(list(parameters.values()), **_rates(options), fused=True)


@register("optimizer", "adamw_8bit", sharded=False)
def adamw_8bit(parameters: Parameters, options: OptimizerOptions) -> Optimizer:
    """AdamW that keeps its moments in 8 bits, a quarter of their memory (bitsandbytes)."""
    from bitsandbytes.optim import AdamW8bit

    return AdamW8bit(list(parameters.values()), **_rates(options))  # type: ignore[no-any-return]


@register("optimizer", "muon")
def muon(parameters: Parameters, options: OptimizerOptions) -> list[Optimizer]:
    """Steps along orthogonalised momentum for matrices, and AdamW for embeddings, heads and the rest (Jordan et al.
    2024); at the root mean square of AdamW's steps (Liu et al. 2025, arXiv:2502.16982)."""
    import torch

    matrices = {name: one for name, one in parameters.items() if is_hidden_matrix(name, one)}
    rest = {name: one for name, one in parameters.items() if name not in matrices}
    found: list[Optimizer] = []
    if matrices:
        found.append(torch.optim.Muon(
            list(matrices.values()), lr=options.lr, weight_decay=options.weight_decay, momentum=options.momentum,
            adjust_lr_fn="match_rms_adamw",
        ))  # fmt: skip
    return [*found, adamw(rest, options)] if rest else found


OUTER = ("embed", "lm_head", "value_head", "proj_out", "wte", "wpe")  # in names of matrices from or to tokens


def is_hidden_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Whether Muon steps a parameter: a matrix between hidden states, as those of LoRA are."""
    return parameter.ndim == 2 and (".lora_" in name or not any(outer in name for outer in OUTER))


def _rates(options: OptimizerOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("lr", "betas", "eps", "weight_decay")}


@register("learning rate", "constant", moves=False)
def constant(done: float, step: int) -> float:
    """The same at every step."""
    return 1.0


@register("learning rate", "linear")
def linear(done: float, step: int) -> float:
    """It falls in a line."""
    return 1 - done


@register("learning rate", "cosine")
def cosine(done: float, step: int) -> float:
    """It falls as half a wave."""
    return (1 + math.cos(math.pi * done)) / 2
