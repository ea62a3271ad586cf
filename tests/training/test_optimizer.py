"""Optimizers of libraries, learning rate schedules and gradient clipping."""

import io
import math
from collections.abc import Sequence

import pytest
import torch

from burnish.options import OptimizerOptions
from burnish.training.optimizer import ParameterGroup, clip_gradients, learning_rate, make_optimizers
from burnish.utils.errors import UserError
from tests.support.shown import ROOT, blocks
from tests.support.tiny_run import TinyRun


def network() -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    made = [torch.nn.Parameter(torch.randn(shape)) for shape in [(4, 3), (5,), ()]]
    for parameter in made:
        parameter.grad = torch.randn_like(parameter) * 3
    return made


def test_steps_are_those_of_torchs_adamw():
    mine, other = network(), network()
    given = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}
    (fused,) = make_optimizers({str(i): p for i, p in enumerate(mine)}, OptimizerOptions(**given))
    plain = torch.optim.AdamW(other, **given, foreach=False, fused=False)
    assert fused.param_groups[0]["fused"]
    for _ in range(5):
        fused.step()
        plain.step()
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_states_on_the_host_step_as_they_would_here_and_leave_what_has_no_gradient():
    mine, other = network(), network()
    options = [OptimizerOptions(lr=0.1, offload=away) for away in (True, False)]
    groups = [ParameterGroup("actor", dict(zip("abc", weights, strict=True)), one, total_steps=8)
              for weights, one in zip((mine, other), options, strict=True)]  # fmt: skip
    for number in range(4):
        for one, weights in zip(groups, (mine, other), strict=True):
            weights[0].data.mul_(0.5)  # as what is loaded is another
            weights[1].grad = None if number == 1 else torch.full((5,), 1.0 + number)
            one.load_state_dict(one.state_dict())
            one.step()
    assert all(map(torch.equal, mine, other))
    assert len(set(groups[0].optimizers[0].state) - set(mine)) == len(mine)


COSINE = [1 + math.cos(math.pi * (step - 2) / 8) for step in range(2, 11)]


@pytest.mark.parametrize(("options", "expected"), [
    ({}, [2.0] * 11),
    ({"warmup_steps": 4}, [0.5, 1.0, 1.5, *[2.0] * 8]),
    ({"warmup_steps": 0.4}, [0.5, 1.0, 1.5, *[2.0] * 8]),
    ({"warmup_steps": 0.29, "schedule": "cosine"}, [1.0, 2.0, *COSINE]),  # rounded down to whole steps
    ({"warmup_steps": 0.04}, [2.0] * 11),
    ({"schedule": "linear"}, [2 * (1 - step / 10) for step in range(11)]),
    ({"schedule": "linear", "min_lr": 0.5}, [0.5 + 1.5 * (1 - step / 10) for step in range(11)]),
    ({"schedule": "cosine", "warmup_steps": 2}, [1.0, 2.0, *COSINE]),
    ({"schedule": "cosine", "warmup_steps": 2, "min_lr": 0.5}, [1.0, 2.0, *(0.5 + 0.75 * c for c in COSINE)]),
], ids=str)  # fmt: skip
def test_the_rate_follows_its_schedule(options, expected):
    given = OptimizerOptions(lr=2.0, **options)
    rates = [learning_rate(step, given, 10, given.rate) for step in range(26)]
    assert rates[:11] == pytest.approx(expected)
    assert rates[11:] == pytest.approx([expected[-1]] * 15, abs=1e-12), "more steps than planned"


@pytest.mark.parametrize("max_norm", [0.5, 1.0, 1e6, None])
def test_clipping_is_torchs_and_tells_the_norm_of_before(max_norm):
    mine, other = network(), network()
    (norm,) = clip_gradients([(mine, max_norm)])
    torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(other, max_norm or math.inf))
    assert float(norm) > 1
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-7)
    mine[1].grad = None
    expected = torch.cat([mine[0].grad.flatten(), mine[2].grad.flatten()]).norm()
    torch.testing.assert_close(*clip_gradients([(mine, None)]), expected)
    assert clip_gradients([([torch.nn.Parameter(torch.ones(2))], 1.0)]) == [0]
    half = torch.nn.Parameter(torch.zeros(10_000, dtype=torch.bfloat16))
    half.grad = torch.full_like(half, 0.01)
    assert float(*clip_gradients([([half], None)])) == pytest.approx(1.0, rel=2e-3), "measured in float32"


def muon_step(gradient: torch.Tensor, lr: float) -> torch.Tensor:
    """The first step of Muon, with the orthogonal factor of its momentum by an exact decomposition."""
    momentum = 0.05 * gradient
    u, _, v = torch.linalg.svd(0.05 * gradient + 0.95 * momentum, full_matrices=False)
    return -lr * 0.2 * max(gradient.shape) ** 0.5 * (u @ v)


def test_muon_steps_matrices_and_adamw_the_rest():
    draw = torch.Generator().manual_seed(0)
    names = {"layer.weight": (6, 4), "embed_tokens.weight": (6, 4), "layer.bias": (6,), "lm_head.lora_A.weight": (2, 8)}
    weights = {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in names.items()}
    muon, adamw = optimizers = make_optimizers(weights, OptimizerOptions(name="muon", lr=0.1))
    assert [len(one.param_groups[0]["params"]) for one in optimizers] == [2, 2]
    for weight in weights.values():
        weight.grad = torch.randn(weight.shape, generator=draw)
    muon.step()
    adamw.step()
    for name in ("layer.weight", "lm_head.lora_A.weight"):
        # the Newton-Schulz iteration brings singular values to about 0.7 to 1.2 of 1
        step, exact = weights[name].detach(), muon_step(weights[name].grad, 0.1)
        assert torch.nn.functional.cosine_similarity(step.flatten(), exact.flatten(), dim=0) > 0.97
        assert 0.6 < float(step.norm() / exact.norm()) < 1.25
    for name in ("embed_tokens.weight", "layer.bias"):
        torch.testing.assert_close(weights[name].detach(), -0.1 * weights[name].grad.sign(), rtol=1e-5, atol=1e-5)


def group(options: OptimizerOptions) -> ParameterGroup:
    draw = torch.Generator().manual_seed(0)
    names = {"layer.weight": (80, 64), "layer.bias": (80,)}  # bitsandbytes quantises from 4096 values on
    weights = {name: torch.nn.Parameter(torch.randn(shape, generator=draw)) for name, shape in names.items()}
    return ParameterGroup("actor", weights, options, total_steps=8)


def steps(one: ParameterGroup, numbers: Sequence[int]) -> None:
    for number in numbers:
        for weight in one.parameters.values():
            weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(number))
        one.step()


@pytest.mark.parametrize("name", ["adamw", "muon", "adamw_8bit"])
def test_a_group_goes_on_as_if_nothing_had_happened(name):
    if name == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    options = OptimizerOptions(name=name, lr=0.1, schedule="cosine", min_lr=0.01)
    through, stopped, resumed = (group(options) for _ in range(3))
    steps(through, range(6))
    steps(stopped, range(3))
    kept = io.BytesIO()
    torch.save(stopped.state_dict(), kept)
    kept.seek(0)
    for key, weight in resumed.parameters.items():
        weight.data = stopped.parameters[key].data.clone()
    resumed.load_state_dict(torch.load(kept, weights_only=True))
    steps(resumed, range(3, 6))
    for key, weight in through.parameters.items():
        assert torch.equal(resumed.parameters[key], weight)

    saved = stopped.state_dict()
    saved["optimizer"][0]["param_groups"][0] |= {"weight_decay": 7, "counted": 3}  # options are those of now
    options.weight_decay = 0.5
    (changed := group(options)).load_state_dict(saved)
    steps(changed, [3])
    assert [changed.optimizers[0].param_groups[0][name] for name in ("weight_decay", "counted")] == [0.5, 3]
    options.name, options.momentum = "adamw", 0.95
    with pytest.raises(UserError, match=r"optimizer\.name is adamw, but the checkpoint has the state of"):
        group(options).load_state_dict(stopped.state_dict() | {"name": "muon"})


def test_an_optimizer_a_rate_and_a_hook_of_a_plugin_go_on_where_they_were(files):
    (plugin,) = (one.text for one in blocks(ROOT / "docs" / "extending.md") if one.title == "stepping.py")
    (files / "mine.py").write_text(plugin)
    own = ["plugins=[{files}/mine.py]", "optimizer={name: {name: sgd}, schedule: hold_then_fall, schedule_updates: 2}"]
    whole, resumed = (TinyRun(files, "language", "llama", "algorithm=grpo", *own, name=name) for name in ("a", "b"))
    whole.train("steps=2")
    resumed.train("steps=1")
    resumed.train("steps=2")
    assert resumed.metrics[-1] == whole.metrics[-1]
    assert whole.metrics[-1]["mine/reward_of_best"] > 0
    torch.testing.assert_close(resumed.tensors, whole.tensors, rtol=0, atol=0, equal_nan=True)
