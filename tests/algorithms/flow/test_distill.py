"""Learning from teachers: closed forms on a linear velocity, and whole updates on a tiny model."""

from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError

from burnish.algorithms.flow.base import Teacher
from burnish.algorithms.flow.distill import Distill
from burnish.flow.windows import Window
from burnish.models.flow.teachers import check_teacher, load_teacher
from burnish.options.flow import LoraOptions, ModelOptions
from burnish.types.rollout import Steps
from burnish.utils.errors import UserError
from tests.support.factory import tiny_flux, tiny_pipeline
from tests.support.flow_bench import Bench, unconditioned

WINDOW = Window(kind="random", size=2, scattered=True)
BOTH = ["distill_fm_mse", "distill_kl"]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    return tiny_pipeline(tmp_path_factory.mktemp("student"), vae=False)


def steps(count=6) -> Steps:
    generator = torch.Generator().manual_seed(0)
    time = torch.linspace(0.9, 0.4, count)
    return Steps(
        conditioning=unconditioned(count),
        unconditional=unconditioned(count),
        state=torch.randn(count, 1, 2, 2, generator=generator),
        next_state=torch.randn(count, 1, 2, 2, generator=generator),
        time=time,
        time_next=time - 0.1,
        logprob=torch.zeros(count),
        time_max=0.95,
    )


def linear(weight):
    return lambda x, time, conditioning, unconditional: x @ weight


def distill(objective, *weights, **options) -> Distill:
    kind = {"transition": "sde"} if objective == "distill_kl" else {}
    teachers = [Teacher(path=f"teacher_{i}", weight=weight) for i, weight in enumerate(weights)]
    return Distill(objective=objective, teachers=teachers, **(kind | options))


@pytest.mark.parametrize("objective", BOTH)
def test_a_student_that_is_its_teacher_has_nothing_to_learn(objective):
    weight = torch.randn(2, 2, requires_grad=True)
    roles = SimpleNamespace(policy=linear(weight), teachers=[linear(weight.detach())])
    loss = distill(objective, 1.0).loss(steps(), roles)
    loss.total.backward()
    assert float(loss.total.detach()) == 0.0
    assert (weight.grad == 0).all()


def test_velocity_matching_in_closed_form():
    part = steps()
    mine, first, second = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(1)).unbind(0)
    roles = SimpleNamespace(policy=linear(mine), teachers=[linear(first), linear(second)])
    loss = distill("distill_fm_mse", 1.0, 0.25).loss(part, roles)
    each = [(part.state @ (mine - other)).square().flatten(1).mean(1).sum() for other in (first, second)]
    torch.testing.assert_close(loss.total, each[0] + 0.25 * each[1])
    assert loss.metrics["actor/distill_fm_mse_loss/teacher_1"] == (pytest.approx(float(each[1])), 6)


@pytest.mark.parametrize("form", ["published", "exact"])
def test_the_kl_of_a_step_is_that_of_its_velocities_in_units_of_its_noise(form):
    """Of the sde: the means differ by (1 + g^2 (1 - t) / 2t) dt (v - v'), the spread is g sqrt(dt)."""
    part = steps()
    mine, other = torch.randn(2, 2, 2, generator=torch.Generator().manual_seed(1)).unbind(0)
    roles = SimpleNamespace(policy=linear(mine), teachers=[linear(other)])
    loss = distill("distill_kl", 1.0, kl_form=form).loss(part, roles)
    t, dt = part.time, part.time - part.time_next
    g = 0.7 * (t / (1 - t)).sqrt()
    gain = (1 + g.square() * (1 - t) / (2 * t)) * dt
    distance = (part.state @ (mine - other)).square().flatten(1).mean(1)
    variance = g.square() * (dt if form == "exact" else 1)
    torch.testing.assert_close(loss.total, (gain.square() * distance / (2 * variance)).sum())


@pytest.mark.parametrize("objective", BOTH)
def test_the_gradient_is_that_of_finite_differences(objective):
    part, other = steps(), torch.eye(2)
    algorithm = distill(objective, 0.5)

    def total(weight):
        return algorithm.loss(part, SimpleNamespace(policy=linear(weight), teachers=[linear(other)])).total

    weight = torch.tensor([[0.3, -0.2], [0.5, 0.9]], requires_grad=True)
    total(weight).backward()
    for i in range(4):
        shift = torch.zeros(4).index_fill(0, torch.tensor(i), 1e-2).view(2, 2)
        with torch.no_grad():
            slope = (total(weight + shift) - total(weight - shift)) / 2e-2
        assert float(slope) == pytest.approx(float(weight.grad.flatten()[i]), rel=1e-2, abs=1e-3)


@pytest.mark.parametrize("lora", [True, False])
@pytest.mark.parametrize("objective", BOTH)
def test_the_guided_untrained_model_teaches_whatever_the_micro_batches(pipeline, objective, lora):
    kind = {"transition": "cps"} if objective == "distill_kl" else {}
    algorithm = Distill(objective=objective, teachers=[Teacher(guidance_scale=3.0)], window=WINDOW, **kind)
    whole, parts = (Bench(pipeline, algorithm, lora=lora, micro=size) for size in (100, 5))
    before = whole.weights()
    first, second = whole.train(2), parts.train(2)
    assert (whole.weights() - before).abs().max() > 1e-3
    torch.testing.assert_close(parts.weights(), whole.weights(), rtol=1e-3, atol=1e-4)
    name = f"actor/{objective}_loss"
    assert second[name] == pytest.approx(first[name], rel=1e-3)
    assert first[name] > 0


def test_at_the_runs_own_guidance_the_untrained_model_teaches_nothing(pipeline):
    bench = Bench(pipeline, Distill(teachers=[Teacher()], window=WINDOW))
    assert bench.train()["actor/distill_fm_mse_loss"] == 0.0


def test_deterministic_steps_are_recorded_to_the_very_last(pipeline):
    bench = Bench(pipeline, Distill(teachers=[Teacher(guidance_scale=2.0)]))
    trace = bench.collect().trace
    assert trace.time.shape == (12, 5)
    assert (trace.time_next[:, -1] == 0).all()
    assert torch.equal(trace.next_state[:, -1], trace.latents)
    assert torch.equal(trace.next_state[:, :-1], trace.state[:, 1:])


def test_a_teacher_of_its_own_is_asked_with_its_own_weights_and_guidance(pipeline, tmp_path):
    other = tiny_pipeline(tmp_path, vae=False, seed=1)
    options = ModelOptions(path=str(pipeline), lora=LoraOptions(rank=4))
    check_teacher(options, str(other), None, "algorithm.teachers[0]")
    teacher = load_teacher(options, str(other), None)
    algorithm = Distill(teachers=[Teacher(path=str(other), guidance_scale=2.0), Teacher(path=str(other))])
    asked: list[Teacher] = []
    bench = Bench(pipeline, algorithm, load_teacher=lambda one: asked.append(one) or teacher)
    assert not asked  # only who trains needs them
    trace = bench.collect().trace.steps()
    given = (trace.state, trace.time, trace.conditioning, trace.unconditional)
    with torch.no_grad():
        guided, plain = (role(*given) for role in bench.roles.teachers)
        alone = teacher.velocity(teacher.network, trace.state, trace.time, trace.conditioning.rows())
        away = teacher.velocity(teacher.network, trace.state, trace.time, trace.unconditional.rows())
        mine = bench.roles.policy(*given)
    torch.testing.assert_close(plain, alone)
    torch.testing.assert_close(guided, away + 2 * (alone - away), rtol=1e-4, atol=1e-4)
    assert (plain - mine).abs().max() > 1e-2
    assert not any(parameter.requires_grad for parameter in teacher.network.parameters())
    assert teacher.pipeline.text_encoder is None
    bench.train()


def test_a_teacher_with_an_adapter_predicts_what_the_trained_policy_did(pipeline, tmp_path):

    trained = Bench(pipeline, Distill(teachers=[Teacher(guidance_scale=3.0)], window=WINDOW))
    trained.train(2)
    trained.roles.model.save_lora(tmp_path, "policy")
    options = ModelOptions(path=str(pipeline), lora=LoraOptions(rank=4))
    check_teacher(options, None, str(tmp_path), "algorithm.teachers[0]")
    teacher = load_teacher(options, None, str(tmp_path))
    part = trained.collect(7).trace.steps()
    with torch.no_grad():
        expected = trained.roles.policy(part.state, part.time, part.conditioning, part.unconditional)
        velocity = teacher.velocity(teacher.network, part.state, part.time, part.conditioning.rows())
    torch.testing.assert_close(velocity, expected, rtol=1e-4, atol=1e-4)


def test_teachers_that_do_not_fit_are_refused_by_their_files_alone(pipeline, tmp_path):
    student = ModelOptions(path=str(pipeline))
    places = {name: tmp_path / name for name in ("flux", "vae", "t5")}
    for folder in places.values():
        folder.mkdir()
    refused = {
        "FluxPipeline": tiny_flux(places["flux"], vae=False),
        "in_channels": tiny_pipeline(places["vae"], vae=True),
        "text_encoder_3": tiny_pipeline(places["t5"], vae=False, t5=True),
    }
    for word, path in refused.items():
        with pytest.raises(UserError, match=word) as caught:
            check_teacher(student, str(path), None, "algorithm.teachers[1]")
        assert str(caught.value).startswith("algorithm.teachers[1].path is ")
    with pytest.raises(UserError, match=r"algorithm\.teachers\[0\]\.path is nowhere"):
        check_teacher(student, "nowhere", None, "algorithm.teachers[0]")
    with pytest.raises(UserError, match=r"teachers\[0\]\.lora is .*adapter"):
        check_teacher(student, None, str(tmp_path), "algorithm.teachers[0]")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"objective": "distill_kl"}, "no std"),
        ({"noise_level": 0.3}, "noise_level is never read"),
        ({"kl_form": "exact"}, "kl_form is read only"),
        ({"teachers": []}, "at least 1"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, said):
    with pytest.raises(ValidationError, match=said):
        Distill(**options)
