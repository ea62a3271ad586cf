"""What is told of a policy that moves away, of the noise of its gradients, and of what its passes cost."""

from __future__ import annotations

import pytest
import torch

from burnish.flow.transitions import transition
from burnish.models.language.loading import load_language_model
from burnish.models.lora import add_adapters
from burnish.options.flow import LoraOptions, ModelOptions
from burnish.tasks.language.meter import ResponseMeter, lengths_of
from burnish.training.step_metrics import signal_metrics
from burnish.types.batch import Gathered
from burnish.types.completion import Completion
from tests.support.flops import torch_flops
from tests.support.language_samples import folder_of
from tests.support.tiny_language import chat, picture
from tests.support.tiny_run import TinyRun

WORDS = " ".join(["count"] * 40)
ONE = ["validation.before=false", "validation.every=null", "trainer.mini_batch_size=null", "trainer.epochs=1"]


def test_an_untrained_policy_has_not_grown_and_signal_and_noise_are_logged(files):
    run = TinyRun(files, "generators", "sd3", "algorithm=flow_grpo", "algorithm.kl_coef=0.1", *ONE)
    run.train("steps=2")
    first, *_, last = (row for row in run.metrics if "actor/loss" in row)
    assert first["actor/velocity_norm_ratio"] == pytest.approx(1.0)
    assert (first["actor/velocity_distance"], last["actor/velocity_distance"] > 1e-3) == (0.0, True)
    for row in (first, last):
        signal, power = row["actor/grad_norm"] ** 2, row["variance_proxy/proxy2_total_power"]
        assert row["variance_proxy/proxy1_signal_strength"] == pytest.approx(signal)
        assert row["variance_proxy/proxy3_pure_noise"] <= max(power - signal, 0.0)
        assert row["variance_proxy/expected_w"] > 0
    plain = TinyRun(files, "generators", "sd3", "algorithm=flow_grpo", "model.lora=null", *ONE)
    plain.train("steps=1")
    assert not [name for name in plain.metrics[-1] if "velocity" in name], "nothing to compare it with"


@pytest.mark.parametrize("density", ["gaussian", "squared_error"])
def test_the_power_of_a_score_is_the_norm_of_its_gradient(density):
    generator = torch.Generator().manual_seed(0)
    velocity, x, landed = torch.randn(3, 5, 2, 3, 3, generator=generator).unbind(0)
    step = transition("sde", velocity, x, torch.tensor(0.6), torch.tensor(0.4), noise=0.7, t_max=0.95)
    mean = step.mean.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(type(step)(mean, step.std, step.step).logprob(landed, density).sum(), mean)
    torch.testing.assert_close(step.score_power(landed, density), gradient.square().flatten(1).sum(1))


def test_noise_of_gradients_is_the_variance_of_their_mean():
    """Closed form: per-term gradients g_i; the variance of their mean is sum |g_i - mean|^2 / (N (N - 1))."""

    def noise(power, count, norm):
        name = "variance_proxy/proxy2_total_power"
        told = signal_metrics({f"sum {name}": power * count, f"count {name}": count}, norm)
        return told["variance_proxy/proxy3_pure_noise"]

    terms = torch.randn(6, 40, generator=torch.Generator().manual_seed(0)).double()
    power, mean = float(terms.square().sum(1).mean()), terms.mean(0)
    assert noise(power, 6, float(mean.norm())) == pytest.approx(float((terms - mean).square().sum() / (6 * 5)))
    assert noise(1.0, 8, 2.0) == 0
    assert noise(1.0, 1, 0.5) == 0, "one term has no variance"


def test_a_pipeline_that_begins_from_a_picture_is_trained_on_the_steps_that_it_takes(files):
    strength = ["rollout.call={strength: 0.5}", "data.train_files={files}/edits.jsonl", "rollout.num_inference_steps=6"]
    run = TinyRun(files, "generators", "flux-img2img", "algorithm=flow_grpo", *strength, *ONE)
    run.train("steps=1")
    assert run.metrics[-1]["actor/grad_norm"] > 0
    wide = "algorithm.window={kind: fixed, size: 5}"
    run = TinyRun(files, "generators", "flux-img2img", "algorithm=flow_grpo", *strength, *ONE, wide)
    assert "num_inference_steps 6 the pipeline takes 3" in run.train(status=2).message


@pytest.mark.parametrize("family", ["qwen2", "qwen2_5_vl", pytest.param("qwen3_moe", marks=pytest.mark.thorough)])
def test_passes_cost_what_pytorch_counts(family):
    model = load_language_model(ModelOptions(path=str(folder_of(family)), device="cpu"))
    model.network.requires_grad_(True)
    seen = [picture(0, 64, 64)] if model.has_vision else []
    prompt = model.encode(*chat("What is", *seen, WORDS))
    given = Gathered(table=prompt, index=torch.zeros(1, dtype=torch.long))
    count = 384 - prompt.lengths[0] + 1
    ids = prompt.ids[0][:1].expand(1, count)
    completion = Completion.of_text(given, ids, torch.tensor([count]), axes=model.axes)

    def counts(adapter):
        meter = ResponseMeter(1.0, model, model.network, lambda: adapter)
        with meter.counting(), torch.enable_grad():
            meter.states(completion, "packed")
        assert meter.works
        with torch_flops() as counter:
            model.response_states(model.network, completion, layout="packed").hidden.square().sum().backward()
        return meter.counted, counter.get_total_flops()

    ours, theirs = counts(None)
    assert ours == pytest.approx(theirs, rel=0.01 if seen else 1e-9)
    if family == "qwen2":
        targets = [name for name, _ in model.network.named_modules() if name.endswith(("q_proj", "down_proj"))]
        add_adapters(model.network, LoraOptions(rank=3), ["policy"], seed=0, default_targets=targets)
        ours, theirs = counts("policy")
        assert ours == pytest.approx(theirs, rel=1e-9)
        assert counts(None)[0] < ours
        meter = ResponseMeter(1.0, model, model.network, lambda: None)
        hidden = torch.randn(7, 16, requires_grad=True)
        with meter.counting():
            meter.head(hidden, lambda: torch.zeros(256, 16))
        assert meter.counted == 2 * 2 * hidden.numel() * 256


@pytest.mark.parametrize("layout", ["packed", "shared", "padded", "auto"])
def test_lengths_of_layouts(layout):
    class Size:
        parameters_per_token, attention_width = 100, 10

    shared = (3 + 5 + 2 + 4 + 1, 9 + 25 + 2 * 5 + 4 * 7 + 1 * 6)
    apart = (5 + 7 + 6, 25 + 49 + 36)
    assert lengths_of([3, 5], [2, 4, 1], [0, 0, 1], layout, Size()) == (shared if layout[0] in "sa" else apart)
