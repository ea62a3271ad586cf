"""burnish sample for generators: images, clips or sounds of given prompts."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rich.markup import escape

from burnish.commands.opening import SampleRequest, given_media, open_run, output_folder, remove_earlier
from burnish.data.prompts import read_prompts
from burnish.diffusion.algorithms.base import Needs
from burnish.diffusion.engine import FlowEngine, FlowJob
from burnish.diffusion.options import ModelOptions, RolloutOptions
from burnish.diffusion.pipeline.loading import check_parts, family_of, load_model, read_index
from burnish.diffusion.roles import FlowRoles
from burnish.diffusion.rollouts import contact_sheet, write_inputs, write_sample
from burnish.types.clips import Sample, is_finite, kind
from burnish.types.rollout import Prompt
from burnish.utils import terminal
from burnish.utils.disk import writing
from burnish.utils.errors import UserError
from burnish.utils.reading import checked_path

log = logging.getLogger(__name__)


def draw(assembly: Any, request: SampleRequest) -> int:
    """Sample what the prompts say; without an assembly, the source is a pipeline's directory."""
    n, seed = request.n, request.seed
    if request.videos or request.audios:
        raise UserError(
            "--video and --audio are for language models; leave them out, or give a --prompt-file with them"
        )
    prompts = _prompts(assembly, request)
    target = output_folder(request.output, "sample")
    with _engine(assembly, request) as engine:
        job = FlowJob.groups(prompts, n, purpose="sample", update=0, **_how(assembly, request))
        chunks = engine.sample(job)
        samples: list[Sample] = []
        with terminal.progress("Sampling") as tell:
            for _, _, chunk in chunks:
                samples += chunk
                tell(len(samples), len(prompts) * n)
    remove_earlier(target)
    with writing(target), (target / "samples.jsonl").open("w") as lines:
        for i, (prompt, drawn) in enumerate(zip(job.prompts, samples, strict=True)):
            group = f"{int(job.group[i]):03d}"
            if i % n == 0:
                inputs = write_inputs(target, f"{group}-input", prompt)
            name = write_sample(target, f"{group}-{int(job.sample[i]):02d}", drawn)
            record = {"file": name, "prompt": prompt.text} | ({"images": inputs} if inputs else {})
            lines.write(json.dumps(record | {"seed": seed}) + "\n")
        contact_sheet(samples, prompts, n).save(target / "grid.png")
    plural = f"{kind(samples[0])}s"
    non_finite = sum(not is_finite(drawn) for drawn in samples)
    if non_finite:
        log.warning("%d of %d %s have non-finite values, shown black", non_finite, len(samples), plural)
    where = escape(str(target))
    count = terminal.counted(len(samples), plural)
    terminal.console().print(f"{count} in [bold]{where}[/bold]; overview in {where}/grid.png")
    return 0


def _prompts(assembly: Any, request: SampleRequest) -> list[Prompt]:
    """The prompts of a request, all of those on the command line with all of its images; checked by the model."""
    images = tuple(given_media(path, "image") for path in request.images)
    prompts = [Prompt(text=text, images=images) for text in request.prompts]
    if request.prompt_file:
        keys = None if assembly is None else assembly.config.data
        prompts += read_prompts(str(checked_path(request.prompt_file, "--prompt-file")), keys)
    if not prompts:
        raise UserError("no prompt is given; write it after the source, or use --prompt-file FILE")
    options = ModelOptions(path=request.source) if assembly is None else assembly.config.model
    rollout = RolloutOptions() if assembly is None else assembly.config.rollout
    _, index = read_index(options)
    family_of(options, index).check_inputs(index, rollout, prompts)
    check_parts(options, rollout, prompts)
    return prompts


def _how(assembly: Any, request: SampleRequest) -> dict[str, Any]:
    """Fields of the job: what was asked for, and as the run's validation samples in all else."""
    if assembly is None:
        return {}
    validation = assembly.config.validation
    fields = {"num_inference_steps": "steps", "guidance_scale": "guidance"}
    return {
        fields.get(name, name): request.changes.get(name, getattr(validation, name))
        for name in ("num_inference_steps", "guidance_scale", "solver", "height", "width")
    }


@contextmanager
def _engine(assembly: Any, request: SampleRequest) -> Iterator[FlowEngine]:
    """The sampling engine, with the trained weights if there are any."""
    source, changes, seed = request.source, request.changes, request.seed
    if assembly is None:
        defaults: dict[str, Any] = {"num_inference_steps": 28, "guidance_scale": 7.0, "batch_size": 8}
        rollout = RolloutOptions(**(defaults | changes))
        roles = FlowRoles(
            load_model(ModelOptions(path=source), rollout), Needs(), None,
            guidance=rollout.guidance_scale, micro_batch_size=8, on_policy=True, seed=seed,
        )  # fmt: skip
        yield FlowEngine(roles, rollout, seed=seed)
        return
    if "num_frames" in changes:  # which the model is loaded for; a job has the others
        assembly, _ = open_run(source, [f"rollout.num_frames={changes['num_frames']}"])
    rollout = replace(assembly.config.rollout, batch_size=min(assembly.config.rollout.batch_size, 16))
    with assembly.trained_weights():
        yield FlowEngine(assembly.roles, rollout, seed=seed)
