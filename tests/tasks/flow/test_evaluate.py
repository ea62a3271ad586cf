"""Validation with steps, guidance, solver and size of its own: always the same noise, never the rollouts'."""

from __future__ import annotations

import pytest
import torch

from burnish.config import load
from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.tasks import assemble
from burnish.utils.errors import UserError

SMALL = [
    "steps=2", "data.train_batch_size=2", "rollout.n=2", "validation.n=2",
    "validation.max_prompts=2", "scoring.processes=0", "rewards.ocr=null", "rewards.jpeg_compressibility.weight=1",
    "algorithm=flow_grpo", "optimizer.schedule_updates=null",
]  # fmt: skip


def assembly_of(*overrides):
    return assemble(load("quickstart", [*SMALL, *overrides]))


def drawn(assembly, guidance=None):
    evaluation = assembly.evaluation(assembly)
    return drawn_by(assembly, evaluation.job(2, guidance))


def drawn_by(assembly, job):
    return torch.cat([trace.latents for _, trace, _ in assembly.engine.sample(job)])


def test_what_is_given_takes_the_place_of_the_rollouts():
    plain = assembly_of()
    for option, value in (("num_inference_steps", "5"), ("guidance_scale", "2"), ("solver", "heun")):
        validated, rolled = assembly_of(f"validation.{option}={value}"), assembly_of(f"rollout.{option}={value}")
        found = drawn(validated)
        assert torch.equal(found, drawn(rolled)), option
        assert not torch.equal(found, drawn(plain)), option
        assert validated.engine.drawing() == plain.engine.drawing(), "rollouts stay as they are"
    guided = assembly_of("validation.guidance_scale=2")
    assert torch.equal(drawn(guided, 3.0), drawn(assembly_of("rollout.guidance_scale=3")))


def test_pictures_have_the_size_of_the_validation():
    assembly = assembly_of("validation.height=24", "validation.width=16")
    assembly.check()
    evaluation = assembly.evaluation(assembly)
    samples = [drawn.sample for drawn in evaluation.sampled(evaluation.job(1, None)).samples]
    assert {sample.shape for sample in samples} == {(24, 16, 3)}


def test_any_pipeline_draws_so(tmp_path):
    """Of noise prediction, at whose levels the pipeline's own scheduler places the steps of a validation."""
    write(describe("sdxl"), tmp_path / "sdxl", seed=0)
    size = [f"model.path={tmp_path / 'sdxl'}", "rollout.height=32", "rollout.width=32", "validation.n=1"]
    own = [
        "rollout.num_inference_steps=4", "rollout.solver=heun", "validation.num_inference_steps=3",
        "validation.guidance_scale=2", "validation.solver=dpm2m", "validation.width=64",
    ]  # fmt: skip
    options = [one for one in SMALL if not one.startswith(("validation.n=", "algorithm="))]
    given = [
        *options,
        *size,
        *own,
        "algorithm=diffusion_nft",
        "algorithm.train_timesteps=2",
        "model.lora.rank=4",
    ]
    assembly = assemble(load("quickstart", given))
    assembly.check()
    evaluation = assembly.evaluation(assembly)
    job = evaluation.job(1, None)
    found = evaluation.sampled(job)
    assert {one.sample.shape for one in found.samples} == {(32, 64, 3)}
    traces = [trace for _, trace, _ in assembly.engine.sample(job)]
    assert all(len(trace.schedule) == 4 for trace in traces)
    assert torch.equal(torch.cat([trace.latents for trace in traces]), drawn_by(assembly, job))


def test_a_size_that_the_model_can_not_draw_is_refused_at_the_start():
    with pytest.raises(UserError, match=r"validation.height is 17, but this model needs multiples of 4"):
        assembly_of("validation.height=17").check()


def test_a_pipeline_that_chooses_another_size_is_told(caplog):
    assembly = assembly_of("validation.height=24")
    sample = assembly.engine.sample
    assembly.engine.sample = lambda job: (
        (rows, path, [picture.repeat(2, 0) for picture in pictures]) for rows, path, pictures in sample(job)
    )
    assembly.trial()
    assert "rollout.height is 16 and width 32, but the pipeline draws 32 x 32 pixels" in caplog.text
    assert "validation.height is 24 and width 32, but the pipeline draws 48 x 32 pixels" in caplog.text
    caplog.clear()
    assembly.engine.sample = sample
    assembly.trial()
    assert caplog.text == ""
