"""Load balancing: transformers' number and gradient on a whole batch, and the same from any cut of it."""

import pytest
import torch

from burnish.losses.balance import expert_load, load_balancing
from tests.support.token_losses import mask_of

EXPERTS, LAYERS, TOP = 6, 3, 2


def routers(rows: int = 4, width: int = 5) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(rows * width, EXPERTS) for _ in range(LAYERS)]


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_sums_of_micro_batches_are_transformers_loss_of_the_batch(rows):
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    mask, width = mask_of(), 5
    whole = [layer.requires_grad_() for layer in routers()]
    expected = load_balancing_loss_func(tuple(whole), EXPERTS, TOP, mask.long())
    slopes = torch.autograd.grad(expected, whole)

    parts = [
        ([layer.view(-1, width, EXPERTS)[start : start + rows].flatten(0, 1) for layer in whole],
         mask[start : start + rows])
        for start in range(0, len(mask), rows)
    ]  # fmt: skip
    load = sum(expert_load(logits, chosen, TOP) for logits, chosen in parts)
    total = sum(load_balancing(logits, chosen, load, TOP).sum() for logits, chosen in parts) / mask.sum()
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(torch.autograd.grad(total, whole), slopes)


def test_padding_is_not_routed():
    mask = mask_of()
    spoilt = [layer.masked_fill(~mask.view(-1, 1), torch.nan) for layer in routers()]
    load = expert_load(routers(), mask, TOP)
    assert load.equal(expert_load(spoilt, mask, TOP))
    assert load.sum() == mask.sum() * LAYERS * TOP
    loss = load_balancing(spoilt, mask, load, TOP)
    torch.testing.assert_close(loss, load_balancing(routers(), mask, load, TOP))
    assert not loss[~mask].any()


def test_even_use_costs_as_much_as_there_are_experts_per_token():
    mask = torch.ones(1, EXPERTS, dtype=torch.bool)
    loss = load_balancing([torch.zeros(EXPERTS, EXPERTS)], mask, torch.ones(EXPERTS), TOP)
    torch.testing.assert_close(loss, torch.full_like(loss, TOP))


def test_without_tokens_nothing_is_spent():
    mask = torch.zeros(4, 5, dtype=torch.bool)
    load = expert_load(routers(), mask, TOP)
    assert not load.any()
    assert not load_balancing(routers(), mask, load, TOP).any()
