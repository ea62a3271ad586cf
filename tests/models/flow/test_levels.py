"""Noise levels and predictions of schedulers with odd options, beside what the schedulers' own steps make of them."""

from __future__ import annotations

import json

import diffusers
import pytest
import torch

from burnish.models.flow.levels import Levels, Unsupported, once_a_step
from burnish.models.flow.loading import family_of
from burnish.models.flow.timetable import Timetable
from burnish.options.flow import ModelOptions, RolloutOptions
from burnish.utils.errors import UserError

STABLE = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
FLOW = {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "flow_shift": 3.0}
STEPS = 4


def placed(name, **config):
    scheduler = getattr(diffusers, name)(**config)
    scheduler.set_timesteps(STEPS)
    return scheduler


def levels(name, **config):
    scheduler = placed(name, **config)
    return Levels.of(scheduler, scheduler.timesteps)


CLIPPING = [
    ("DDPMScheduler", {**STABLE, "clip_sample": True, "clip_sample_range": 0.8}),
    ("DDPMScheduler", {**STABLE, "clip_sample": False, "thresholding": True}),
    ("DPMSolverMultistepScheduler", {**STABLE, "thresholding": True, "solver_order": 1}),
    ("UniPCMultistepScheduler", {**FLOW, "thresholding": True, "solver_order": 1}),
]


@pytest.mark.parametrize(("name", "config"), CLIPPING, ids=lambda one: one if isinstance(one, str) else "")
def test_a_sample_that_the_scheduler_clips_is_clipped(name, config):
    scheduler = placed(name, **config)
    table = Timetable(Levels.of(scheduler, scheduler.timesteps), 0, 0.0)
    x, output = 3 * torch.randn(2, 2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    time = float(table.times[0])
    # the last step of each lands on the sample that is predicted, clipped
    at = scheduler.timesteps[0]
    found = (
        scheduler.step(output, at, x, generator=torch.Generator()).pred_original_sample
        if name == "DDPMScheduler" else _converted(scheduler, output, x)
    )  # fmt: skip
    clean = x / table.scale(time) - time * table.velocity(scheduler, output, x, time)
    torch.testing.assert_close(clean, found, rtol=1e-4, atol=1e-4)
    unbound = x / table.scale(time) - time * table.predicted(scheduler, output, x, time)
    assert float(unbound.abs().max()) > 2 * float(clean.abs().max())


def _converted(scheduler, output, x):
    scheduler._step_index = 0
    return scheduler.convert_model_output(output, sample=x)


@pytest.mark.parametrize("option", ["clip_sample", "thresholding"])
@pytest.mark.parametrize("name", ["DDIMScheduler", "HeunDiscreteScheduler"])
def test_a_scheduler_whose_clipping_no_velocity_has_is_refused(name, option):
    config = {"clip_sample": False, "thresholding": False, option: True}
    with pytest.raises(Unsupported, match=rf"its {name} clips .*set {option} to false"):
        once_a_step(getattr(diffusers, name).from_config(config))
    assert once_a_step(getattr(diffusers, name).from_config({**config, option: False})) is not None


def test_steps_of_ddim_end_where_the_next_begin():
    for spacing in ("leading", "trailing"):
        assert len(levels("DDIMScheduler", **STABLE, timestep_spacing=spacing).names) == STEPS
    with pytest.raises(Unsupported, match=r"250 long, and its timesteps are .999, 666, 333, 0.*timestep_spacing"):
        levels("DDIMScheduler", **STABLE, timestep_spacing="linspace")


def test_a_table_with_more_sigmas_than_steps_ends_with_the_last_step():
    scheduler = placed("EulerDiscreteScheduler", **STABLE, interpolation_type="log_linear")
    assert len(scheduler.sigmas) == STEPS + 2
    found = Levels.of(scheduler, scheduler.timesteps)
    smallest = float(scheduler.sigmas[STEPS])
    assert smallest > 0.01
    assert float(found.times[-1]) == pytest.approx(smallest / (1 + smallest))


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("UniPCMultistepScheduler", {**FLOW, "final_sigmas_type": "sigma_min"}),
        ("DEISMultistepScheduler", {**STABLE, "use_beta_sigmas": True}),
        ("PNDMScheduler", {**STABLE, "set_alpha_to_one": False}),
    ],
)
def test_a_last_step_of_no_length_is_left_out(name, config):
    scheduler = once_a_step(getattr(diffusers, name)(**config))
    scheduler.set_timesteps(STEPS)
    found = Levels.of(scheduler, scheduler.timesteps)
    assert len(found.names) == STEPS - 1
    assert len(found.times) == STEPS
    assert bool((found.times[1:] < found.times[:-1]).all())
    assert float(found.times[-1]) > 0.01


def test_levels_beyond_pure_noise_are_refused():
    with pytest.raises(Unsupported, match=r"begin at 157.*use_exponential_sigmas.*unless the pipeline.s class sets it"):
        levels("DPMSolverMultistepScheduler", **FLOW, use_exponential_sigmas=True)


def pipeline(folder, scheduler, **config):
    """Configuration files of a Stable Diffusion 3 without weights."""
    (folder / "scheduler").mkdir(parents=True)
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(config))
    return {
        "_class_name": "StableDiffusion3Pipeline", "scheduler": ["diffusers", scheduler],
        "transformer": ["diffusers", "SD3Transformer2DModel"],
    }  # fmt: skip


EULER = "FlowMatchEulerDiscreteScheduler"


@pytest.mark.parametrize(
    ("scheduler", "config", "family"),
    [
        (EULER, {"shift": 3.0, "use_karras_sigmas": False}, "sd3"),
        (EULER, {"use_beta_sigmas": True}, "pipeline"),
        ("UniPCMultistepScheduler", FLOW, "pipeline"),
    ],
)
def test_a_family_leaves_schedulers_that_it_does_not_know_to_the_pipeline_itself(scheduler, config, family, tmp_path):
    index = pipeline(tmp_path, scheduler, **config)
    assert family_of(ModelOptions(path=str(tmp_path)), tmp_path, index).name == family
    own = family_of(ModelOptions(path=str(tmp_path), family="sd3"), tmp_path, index)
    if family == "sd3":
        own.check_options(tmp_path, index, RolloutOptions(batch_size=96))
        return
    named = "use_beta_sigmas" if scheduler == EULER else scheduler
    with pytest.raises(UserError, match=f"model.family is sd3, .*{named}.* model.family=pipeline"):
        own.check_options(tmp_path, index, RolloutOptions(batch_size=96))


def test_a_scheduler_without_noise_levels_is_refused_before_weights_are_read(tmp_path):
    index = pipeline(tmp_path, "SCMScheduler")
    family = family_of(ModelOptions(path=str(tmp_path)), tmp_path, index)
    with pytest.raises(UserError, match="StableDiffusion3Pipeline can't be trained: its SCMScheduler can't noise"):
        family.check_options(tmp_path, index, RolloutOptions(batch_size=96))
