"""Small batches of response tokens with rubbish in the padding, and what every per-token loss must hold."""

import torch
from torch import Tensor

from burnish.rl.surrogates import Aggregation, masked, terms, weights

LENGTHS = [5, 3, 0, 1]


def mask_of(lengths=LENGTHS, width: int = 5) -> Tensor:
    return torch.arange(width) < torch.tensor(lengths)[:, None]


def batch(seed: int = 0, *, spread: float = 0.3, dtype=torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probs, old log-probs, advantages and mask; log-ratios lie on both sides of usual clip ranges."""
    generator = torch.Generator().manual_seed(seed)
    mask = mask_of()
    old = -torch.rand(mask.shape, generator=generator, dtype=dtype) * 2
    logprob = old + spread * torch.randn(mask.shape, generator=generator, dtype=dtype)
    advantage = torch.randn(len(mask), 1, generator=generator, dtype=dtype).expand(mask.shape).clone()
    return logprob, old, advantage, mask


def spoil(values: Tensor, mask: Tensor, rubbish: float) -> Tensor:
    return values.masked_fill(~mask, rubbish)


def aggregate(values: Tensor, mask: Tensor, mode: Aggregation, constant: float | None = None) -> Tensor:
    """The loss of a complete batch, []: summed and divided as the trainer does it; 0 if no action counts."""
    return (masked(values, mask) * weights(mask, mode, constant)).sum() / terms(mask, mode).clamp_min(1)


def slope(function, at: Tensor, index: tuple[int, ...], step: float = 1e-6) -> float:
    """Central difference of a scalar function of a float64 tensor along one entry."""
    up, down = at.clone(), at.clone()
    up[index] += step
    down[index] -= step
    return float((function(up) - function(down)) / (2 * step))


def assert_gradient(function, at: Tensor) -> None:
    leaf = at.clone().requires_grad_()
    (found,) = torch.autograd.grad(function(leaf), leaf)
    for index in torch.cartesian_prod(*[torch.arange(n) for n in at.shape]).view(-1, at.ndim).tolist():
        torch.testing.assert_close(float(found[tuple(index)]), slope(function, at, tuple(index)), rtol=1e-4, atol=1e-7)
