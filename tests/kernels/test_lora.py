"""Layers with adapters as one function: peft's values and gradients, in fewer operations; and products in fp8."""

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model

from benchmarks.kernels import Kernels
from burnish.models.linear import Fp8Linear, LoraLinear, cast_once, in_fp8, joined
from burnish.models.lora import lora_layers, merged_state, merging_rounds
from burnish.utils.errors import UserError


def layer(dtype: torch.dtype, *, bias: bool = True, precision: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(12, 20, bias=bias, dtype=dtype)).requires_grad_(False)
    inject_adapter_in_model(LoraConfig(r=3, lora_alpha=5, target_modules=["0"]), network, adapter_name="policy")
    torch.nn.init.normal_(network[0].lora_B["policy"].weight)
    for part in (network[0].lora_A, network[0].lora_B):
        part["policy"].weight.data = part["policy"].weight.data.to(precision)
    return network


def learned(network, x):
    network.zero_grad()
    y = network(x := x.clone().requires_grad_())
    y.float().square().sum().backward()
    return [y.detach(), x.grad, *(weight.grad for weight in network.parameters() if weight.requires_grad)]


@pytest.mark.parametrize("shape", [(7, 12), (2, 3, 12), (0, 12), (12,)])
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_peft(shape, bias):
    ours, theirs = (layer(torch.float64, bias=bias, precision=torch.float64) for _ in range(2))
    joined(lora_layers(ours))
    assert isinstance(ours[0], LoraLinear)
    x = torch.randn(shape, dtype=torch.float64)
    for own, other in zip(learned(ours, x), learned(theirs, x), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-6)  # sums of squares are float32
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))
        ours[0].enable_adapters(False)
        torch.testing.assert_close(ours(x), ours[0].base_layer(x), rtol=0, atol=0)


def test_merging_says_what_it_rounds_and_refuses_a_weight_of_two_layers():
    network = layer(torch.float32)
    weight, delta = network[0].base_layer.weight, network[0].get_delta_weight("policy")
    for dtype in (torch.bfloat16, None):
        merged, error = merged_state(network, "policy", dtype=dtype)
        assert merged.keys() == {"0.weight", "0.bias"}
        assert merged["0.weight"].equal((weight + delta).to(dtype or torch.float32))
        off = (merged["0.weight"] - (weight + delta)).norm() / delta.norm()
        assert (error, error > 0) == (pytest.approx(off.item(), rel=1e-4), dtype is not None)
    assert [merging_rounds(one) for one in (network, layer(torch.bfloat16))] == [False, True]
    torch.nn.init.zeros_(network[0].lora_B["policy"].weight)
    assert merged_state(network, "policy", dtype=torch.bfloat16)[1] == 0
    network.append(torch.nn.Linear(12, 20)).get_submodule("1").weight = weight
    with pytest.raises(UserError, match=r"0\.weight and 1\.weight are one weight"):
        merged_state(network, "policy")


def test_in_half_precision_adapters_stay_float32_and_nothing_is_cast_twice():
    ours, exact, low = layer(torch.bfloat16), layer(torch.float32), layer(torch.bfloat16, precision=torch.bfloat16)
    joined(lora_layers(ours))
    exact.load_state_dict({key: value.float() for key, value in ours.state_dict().items()})
    x = torch.randn(5, 12).to(torch.bfloat16)
    with cast_once(lora_layers(ours), ["policy"]):
        values = learned(ours, x)
    assert all(map(torch.equal, learned(ours, x), values))
    for own, other in zip(values, learned(exact, x.float()), strict=True):
        torch.testing.assert_close(own.float(), other, rtol=0.03, atol=0.03 * float(other.abs().max()))
    assert [weight.grad.dtype for weight in ours.parameters() if weight.requires_grad] == [torch.float32] * 2
    with torch.no_grad():
        with Kernels() as theirs:
            low(x)
        with Kernels() as alone:
            before = ours(x)
        with cast_once(lora_layers(ours), ["policy"]), Kernels() as cast:
            inside = ours(x)
    assert torch.equal(before, inside)
    assert cast.counts.total() == 3 < alone.counts.total() == theirs.counts.total() == 5


def in_eight_bits(rows):
    scale = rows.float().abs().amax(1, keepdim=True) / 448
    return (rows / scale).to(torch.float8_e4m3fn).float() * scale


def test_a_product_in_fp8_has_a_scale_for_each_row_and_each_output_and_an_exact_adapter():
    network, x = layer(torch.bfloat16), torch.randn(2, 3, 12) * 10.0 ** torch.arange(-3, 3).view(2, 3, 1)
    joined(lora_layers(network))
    base, rows = network[0].base_layer, x.bfloat16().view(6, 12)
    delta = network[0].get_delta_weight("policy").float()
    expected = in_eight_bits(rows) @ in_eight_bits(base.weight).T + rows.float() @ delta.T + base.bias.float()
    with torch.no_grad(), in_fp8([base]) as switch:
        assert type(base) is Fp8Linear
        exact = network(x)
        with switch():
            close = network(x)
        assert torch.equal(network(x), exact)
    torch.testing.assert_close(close.view(6, 20).float(), expected, rtol=0.02, atol=0.02)
    assert not torch.allclose(close.float(), exact.float(), rtol=0.02, atol=0.02)
    assert type(base) is torch.nn.Linear
    assert not vars(base).keys() & {"switch", "rounded"}
