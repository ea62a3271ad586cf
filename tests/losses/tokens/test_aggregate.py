"""Aggregates by name: closed forms, and the same number however a batch is cut or padded."""

import pytest
import torch
from burnish.losses.tokens import aggregate, size

from burnish.losses.policy import weights
from tests.support.token_losses import mask_of

MODES = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


def constant(mode: str) -> float | None:
    return 10.0 if mode.endswith("norm") else None


@pytest.mark.parametrize(("mode", "expected"), zip(MODES, [21 / 6, (2 + 4.5 + 6) / 3, 21 / 3, 21 / 30], strict=True))
def test_closed_forms(mode, expected):
    """Three sequences of 3, 2 and 1 tokens that count, with losses 1 to 6, and one without a token."""
    mask = mask_of([3, 2, 1, 0], 3)
    values = torch.full((4, 3), torch.nan).masked_scatter(mask, torch.arange(1.0, 7.0))
    assert aggregate(values, mask, mode, constant(mode)).item() == pytest.approx(expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_the_cut_into_micro_batches_is_not_seen(mode, rows):
    torch.manual_seed(0)
    mask = torch.rand(7, 6) < 0.5
    mask[2] = False
    values = torch.randn(7, 6, dtype=torch.float64)
    total = sum(
        (part * weights(chosen, mode, constant(mode))).sum()
        for part, chosen in zip(values.split(rows), mask.split(rows), strict=True)
    )
    count = sum(size(chosen, mode) for chosen in mask.split(rows))
    assert count == size(mask, mode)
    torch.testing.assert_close(total / count, aggregate(values, mask, mode, constant(mode)), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_padding_and_empty_sequences_change_nothing(mode):
    torch.manual_seed(0)
    mask, values = mask_of([3, 2], 3), torch.randn(2, 3)
    wider = torch.nn.functional.pad(mask, (0, 4, 0, 2))
    padded = torch.nn.functional.pad(values, (0, 4, 0, 2), value=torch.inf)
    torch.testing.assert_close(
        aggregate(padded, wider, mode, constant(mode)), aggregate(values, mask, mode, constant(mode))
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(2, 3), (2, 0), (0, 3)])
def test_a_batch_that_says_nothing_is_zero(mode, shape):
    mask = torch.zeros(shape, dtype=torch.bool)
    assert size(mask, mode) == 0
    assert aggregate(torch.full(shape, torch.nan), mask, mode, constant(mode)).item() == 0


def test_the_constant_belongs_to_one_mode():
    mask = mask_of()
    with pytest.raises(ValueError, match="seq-mean-token-sum-norm"):
        weights(mask, "token-mean", 10.0)
    with pytest.raises(ValueError, match="largest response length"):
        weights(mask, "seq-mean-token-sum-norm")
    with pytest.raises(ValueError, match="above 0"):
        weights(mask, "seq-mean-token-sum-norm", 0.0)
