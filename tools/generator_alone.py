"""What diffusers alone makes of a pipeline: the same samples as ours, by the pipeline's own call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from tiny_calls import example_call
from tiny_calls import load as load_alone
from torch import Tensor

from burnish.diffusion.engine import FlowJob
from burnish.diffusion.pipeline.arguments import SCHEDULED, SOUND_GUIDANCE, Arguments
from burnish.diffusion.pipeline.program import joined
from burnish.diffusion.pipeline.schedules import ANGLES, EULER
from burnish.models.tiny import Tiny
from burnish.tasks import Assembly
from burnish.types.prompt import Prompt
from burnish.types.rollout import Requests
from burnish.utils import random
from burnish.utils.weights import quietly

SEED, GUIDANCE = 0, 3.0
SAMPLES = 2  # of the prompt that is compared
NEGATIVE = "grey"
# solvers of a higher order that are Euler's method at order 1
MULTISTEP = ("UniPCMultistepScheduler", "DPMSolverMultistepScheduler", "DEISMultistepScheduler",
             "EDMDPMSolverMultistepScheduler")  # fmt: skip
EULERS = ("EulerDiscreteScheduler", "EDMEulerScheduler")  # whose own steps are Euler's


def job_of(assembly: Assembly) -> FlowJob:
    """Some samples of the first prompt, without noise in the steps."""
    return FlowJob.groups(assembly.train_prompts[:1], SAMPLES, purpose="sample", update=0)


def drawn_alone(
    tiny: Tiny, folder: Path, assembly: Assembly, changed: Sequence[str] = (),
    loaded: Callable[[Path], Any] = load_alone,
) -> list[tuple[Tensor, Tensor]]:  # fmt: skip
    """Final state and output of each sample, from our seeds: diffusers loads the pipeline and runs it.

    Args:
        tiny: its description.
        folder: of the pipeline.
        assembly: of the run, which says the seeds.
        changed: what of its own call is changed: its solver, what it begins from.
        loaded: loads it.
    """
    found, job, model = [], job_of(assembly), assembly.roles.model
    prompt: Prompt = job.prompts[0]
    for sample in job.sample.tolist():
        pipeline = loaded(folder)
        if "solver" in changed:
            pipeline.scheduler = euler(pipeline.scheduler)
        if "condition" in changed:
            without_noise(pipeline)
        call = example_call(tiny, pipeline, steps=assembly.config.rollout.num_inference_steps, seed=SEED)
        taken = inspect.signature(type(pipeline).__call__).parameters
        if "prompt" in taken and tiny.prompt:
            call["prompt"] = prompt.text
        seed = random.key(assembly.config.seed, job.purpose, job.update, prompt.uid, sample, "start")
        if "condition" in changed:
            seed = seed_of(prompt)
        call |= guidance_of(taken, model.arguments, prompt, assembly.config.rollout.guidance_scale)
        call["generator"] = torch.Generator().manual_seed(seed)
        if "output_type" in taken:
            call["output_type"] = "pt" if tiny.makes == "sound" else "np"  # what users see
        with quietly(), torch.random.fork_rng(devices=[]), watched_steps(type(pipeline.scheduler)) as states:
            torch.manual_seed(seed)
            made = pipeline(**call)
        arguments = Arguments(type(pipeline), assembly.config.rollout)
        output = arguments.values(made) if "audios" in vars(made) else arguments.tensor(made)
        # some hold a sample twice, for guidance, and some its frames as rows
        rows = [state[None] if bool((state != state[:1]).any()) else state[:1] for state in states.values()]
        state = joined([state.float() for state in rows])
        found.append((state.squeeze(0), with_sound(arguments, made, output)))
    return found


def with_sound(arguments: Arguments, returned: Any, output: Tensor) -> Tensor:
    """An output [1, ...] with the sound that belongs to frames beside it."""
    wave = arguments.wave(returned)
    return output if wave is None or arguments.draws == "sound" else joined([output, wave[None]])


def guidance_of(taken: Any, arguments: Arguments, prompt: Prompt, guidance: float) -> dict[str, Any]:
    """The arguments of a call that turn guidance on or off, of those that it takes."""
    scale = "true_cfg_scale" if "true_cfg_scale" in taken else "guidance_scale"
    scales = [name for name in (scale, SOUND_GUIDANCE) if name in taken]
    if guidance == 1 and arguments.guidance == scale and scale in taken:  # some are off at 0
        off = arguments.of(Requests(prompts=[prompt], height=None, width=None, steps=1), guidance)
        return {name: off[name] for name in scales}
    if arguments.guidance == SCHEDULED:
        return {SCHEDULED: [guidance] * arguments.rollout.num_inference_steps}
    return dict.fromkeys(scales, GUIDANCE) | ({"negative_prompt": NEGATIVE} if "negative_prompt" in taken else {})


@contextmanager
def watched_steps(kind: Any) -> Iterator[dict[int, Tensor]]:
    """The states after the last steps of a class of schedulers, in the order of their first steps."""
    states, step = dict[int, Tensor](), kind.step

    @functools.wraps(step)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        landed = step(self, *args, **kwargs)
        states[id(self)] = landed[0] if isinstance(landed, tuple) else landed.prev_sample
        return landed

    with mock.patch.object(kind, "step", watched):  # pipelines may ask for the class itself
        yield states


def euler(scheduler: Any) -> Any:
    """A scheduler of the same noise levels whose steps are Euler's or DDIM's; the same one if there is none."""
    import diffusers

    name, kind = type(scheduler).__name__, type(scheduler)
    if name in EULER:
        return getattr(diffusers, EULER[name]).from_config(scheduler.config, clip_sample=False)
    if name in MULTISTEP:
        settings = {"solver_order": 1, "disable_corrector": list(range(100)), "algorithm_type": "dpmsolver++"}
        own = inspect.signature(kind).parameters
        return kind.from_config(scheduler.config, **{key: value for key, value in settings.items() if key in own})
    if name == ANGLES:
        return type(name, (_Rotation, kind), {}).from_config(scheduler.config)  # type: ignore[attr-defined]
    if hasattr(scheduler, "alphas_cumprod") and name not in EULERS:
        return type(name, (_Ddim, kind), {}).from_config(scheduler.config)  # type: ignore[attr-defined]
    return scheduler


class _Ddim:
    """Comes before the class of a scheduler that predicts noise: DDIM's step (Song et al. 2020, equation 12).

    It ends where the next one begins. Steps of diffusers' own DDIM are 1000 // N long, whatever its timesteps are.
    """

    def step(
        self, model_output: Tensor, timestep: Any, sample: Tensor, *_: Any, return_dict: bool = True, **__: Any
    ) -> Any:
        from diffusers.schedulers.scheduling_ddim import DDIMSchedulerOutput

        own: Any = self
        model_output = model_output[:, : sample.shape[1]]  # without the variance that some predict, too
        at = own.timesteps.tolist().index(int(timestep))
        before = own.alphas_cumprod[int(timestep)]
        last = at + 1 == len(own.timesteps)
        after = (
            getattr(own, "final_alpha_cumprod", torch.tensor(1.0))
            if last
            else own.alphas_cumprod[int(own.timesteps[at + 1])]
        )
        if own.config.prediction_type == "v_prediction":
            clean = before.sqrt() * sample - (1 - before).sqrt() * model_output
        else:
            clean = (sample - (1 - before).sqrt() * model_output) / before.sqrt()
        noise = (sample - before.sqrt() * clean) / (1 - before).sqrt()
        landed = after.sqrt() * clean + (1 - after).sqrt() * noise
        return DDIMSchedulerOutput(landed, clean) if return_dict else (landed, clean)


class _Rotation:
    """Comes before the class of a scheduler whose times are angles: DDIM's step, without new noise."""

    def step(self, model_output: Tensor, timestep: Any, sample: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        own: Any = self
        after = own.timesteps[own.timesteps.tolist().index(float(timestep)) + 1]
        clean = timestep.cos() * sample - timestep.sin() * model_output
        noise = timestep.sin() * sample + timestep.cos() * model_output
        return after.cos() * clean + after.sin() * noise, clean


def seed_of(prompt: Prompt) -> int:
    """What is random in the condition of a prompt's samples is drawn from this seed."""
    return int(prompt.uid, 16) >> 2


def without_noise(pipeline: Any) -> None:
    """Have the VAE encode images to their means, so that no condition is random."""
    vae = getattr(pipeline, "vae", None)
    if vae is None or not hasattr(vae, "encode"):
        return
    encode = vae.encode

    def encoded(*args: Any, **kwargs: Any) -> Any:
        found = encode(*args, **kwargs)
        known = getattr(found, "latent_dist", None)
        if known is None or not hasattr(known, "mode"):
            return found
        mean = known.mode()
        return SimpleNamespace(latent_dist=SimpleNamespace(sample=lambda generator=None: mean, mode=lambda: mean))

    vae.encode = encoded
