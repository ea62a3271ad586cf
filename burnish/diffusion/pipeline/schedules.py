"""Noise levels of diffusers' schedulers in Burnish's convention, and velocities by what networks predict there."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from burnish.diffusion.pipeline.loading import config_of
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.diffusion.options import RolloutOptions


TOLERANCE = 1e-4
SMALLEST = 1e-8  # signal beside pure noise
# a + s = 1; the same, but what is called sigma is a, and outputs point to the sample; a^2 + s^2 = 1; a = 1
Kind = Literal["flow", "rising", "vp", "ve"]


class Unsupported(Exception):
    """Why a pipeline can't be trained, for a message."""


def kind_of(signal: Tensor, noise: Tensor) -> Kind | None:
    """The convention of steps with these factors a and s, [N] each; None if it is none of these.

    Of numbers that rise to the sample, what is called noise is the signal.
    """
    sums: dict[Kind, Tensor] = {"flow": signal + noise, "vp": signal.square() + noise.square(), "ve": signal}
    found = next((kind for kind, values in sums.items() if bool(((values - 1).abs() < TOLERANCE).all())), None)
    return "rising" if found == "flow" and bool(noise[-1] > noise[0]) else found


def sigma_at(kind: Kind, time: float) -> float:
    """What is called sigma: noise, signal where numbers rise, else noise over signal."""
    return {"flow": time, "rising": 1 - time}.get(kind, time / max(1 - time, SMALLEST))


def time_of(kind: Kind, level: float) -> float:
    """The time whose sigma is known."""
    return {"flow": level, "rising": 1 - level}.get(kind, level / (1 + level))


def velocity_of(kind: Kind, predicts: str, output: Tensor, x: Tensor, time: float) -> Tensor:
    """eps - x_0 at a sample ``x`` [B, ...] of that convention.

    Args:
        kind: of convention.
        predicts: epsilon, sample or v_prediction, as diffusers calls them; flows predict velocities.
        output: [B, ...] of the network.
        x: in its own scale.
        time: t.

    Raises:
        Unsupported: it is unknown what networks predict.
    """
    if kind in ("flow", "rising"):
        return output if kind == "flow" else -output
    size = math.hypot(time, 1 - time)
    a, s = (1 - time) / size, time / size  # as if their squares added up to 1
    known = {"epsilon": (0.0, 1.0), "sample": (1.0, 0.0), "v_prediction": (-s, a), "trigflow": (-s, a)}
    if predicts not in known:
        raise Unsupported(
            f"its scheduler has prediction_type {predicts!r}, which Burnish doesn't "
            "know; save the pipeline with another scheduler, as EulerDiscreteScheduler or, of flows, "
            "FlowMatchEulerDiscreteScheduler"
        )
    p, q = known[predicts]  # output = p x_0 + q eps, and x = a x_0 + s eps
    return ((a + s) * output - (p + q) * (x * a if kind == "ve" else x)) / (a * q - s * p)


EULER = {  # schedulers of several evaluations per step, and those that have the same noise levels with one
    "PNDMScheduler": "DDIMScheduler",
    "CogVideoXDPMScheduler": "CogVideoXDDIMScheduler",  # its steps also take what the one before predicted
    "HeunDiscreteScheduler": "EulerDiscreteScheduler",
    "KDPM2DiscreteScheduler": "EulerDiscreteScheduler",
    "KDPM2AncestralDiscreteScheduler": "EulerDiscreteScheduler",
    "FlowMatchHeunDiscreteScheduler": "FlowMatchEulerDiscreteScheduler",
}
DDIM = ("DDIMScheduler", "DDIMParallelScheduler", "CogVideoXDDIMScheduler")  # their steps are of one length
ANGLES = "SCMScheduler"  # whose times t are angles: x = sigma_data (cos(t) x_0 + sin(t) eps); arXiv:2410.11081
CLIPPING = ("DDPMScheduler", "DDPMParallelScheduler", "LCMScheduler")  # schedulers whose steps read clip_sample
ROUNDING = 1e-5  # relative, of noise levels
DENSE = 1001  # angles between which their times are interpolated


def check_scheduler(kind: Any, path: Path, rollout: RolloutOptions) -> None:
    """Refuse options that a class of schedulers doesn't take, and a configuration of it that can't be trained.

    Args:
        kind: of the pipeline's scheduler; None has nothing to check.
        path: of the pipeline, for the scheduler's configuration.
        rollout: how it draws.

    Raises:
        UserError: naming the option.
        Unsupported: it clips samples, see ``refuse_clips``, or its steps are uneven.
    """
    if kind is None:
        return
    parameters, config = inspect.signature(kind).parameters, config_of(path, "scheduler")
    refuse_clips(kind.__name__, {name: one.default for name, one in parameters.items()} | config)
    if EULER.get(kind.__name__, kind.__name__) in DDIM:
        scheduler = once_a_step(kind.from_config(config))
        scheduler.set_timesteps(min(rollout.num_inference_steps, scheduler.config.num_train_timesteps))
        _refuse_gaps(scheduler, scheduler.timesteps)
    flows = config.get("use_flow_sigmas") or "use_flow_sigmas" not in parameters
    for name, usual in (("schedule", "diffusers"), ("shift", None)):
        if (value := getattr(rollout, name)) != usual and not (flows and _shift(kind)):
            raise UserError(
                f"rollout.{name} is {value}, but the noise levels of a {kind.__name__} can't be shifted; leave it "
                "out, or choose a model whose scheduler is a FlowMatchEulerDiscreteScheduler"
            )


def _shift(kind: type) -> str:
    """What a class of schedulers calls the shift of its noise levels; "" if it has none."""
    return next((name for name in ("shift", "flow_shift") if name in inspect.signature(kind).parameters), "")


def shifted(scheduler: Any, shift: float | None) -> Any:
    """A scheduler whose noise levels are shifted by ``shift``, whatever the size of samples; None leaves its own."""
    if shift is None:
        return scheduler
    static = {"use_dynamic_shifting": False} if "use_dynamic_shifting" in scheduler.config else {}
    return type(scheduler).from_config(scheduler.config, **{_shift(type(scheduler)): shift}, **static)


def _factors(scheduler: Any, names: Tensor, skipped: int) -> tuple[Tensor, Tensor]:
    """Of signal and noise at timesteps, [N] each in float64: the scheduler noises ones and zeros.

    Raises:
        Unsupported: it doesn't noise samples.
    """
    if type(scheduler).__name__ == ANGLES:
        return names.double().cos(), names.double().sin()
    asked, ones, found = copy.copy(scheduler), torch.ones(1, dtype=torch.float64), list[Tensor]()

    def noised(clean: Tensor, name: Tensor) -> Tensor:
        if hasattr(asked, "scale_noise"):
            return asked.scale_noise(clean, name, 1 - clean)  # type: ignore[no-any-return]
        return asked.add_noise(clean, 1 - clean, name)  # type: ignore[no-any-return]

    for step, name in enumerate(names, skipped):
        asked._begin_index = asked._step_index = step  # several steps may have one timestep, as rounded
        try:
            found.append(torch.cat([noised(clean, name[None]) for clean in (ones, 0 * ones)]))
        except (AttributeError, NotImplementedError):
            raise Unsupported(
                f"its {type(scheduler).__name__} has no add_noise, by which its noise levels are read; save the "
                "pipeline with another scheduler, as EulerDiscreteScheduler or FlowMatchEulerDiscreteScheduler"
            ) from None
    signal, noise = torch.stack(found, 1)
    return signal, noise


def _end(scheduler: Any, kind: Kind) -> float:
    """Where the last step ends: 0, but for schedulers that stop a little before."""
    if (sigmas := getattr(scheduler, "sigmas", None)) is not None:
        return time_of(kind, float(sigmas[: len(scheduler.timesteps) + 1][-1]))  # some have more than steps
    final = float(getattr(scheduler, "final_alpha_cumprod", 1.0))
    return time_of(kind, ((1 - final) / final) ** 0.5)


def _refuse_gaps(scheduler: Any, names: Tensor) -> None:
    """DDIM's steps are of one length, whatever its timesteps are: some end elsewhere than the next one begins.

    Raises:
        Unsupported: they do, by more than the rounding of timesteps.
    """
    if type(scheduler).__name__ not in DDIM or len(names) < 2:
        return
    length = scheduler.config.num_train_timesteps // scheduler.num_inference_steps
    if float((names[:-1] - names[1:] - length).abs().max()) > 2:
        raise Unsupported(
            f"the steps of its {type(scheduler).__name__} are {length} long, and its timesteps are "
            f"{names.long().tolist()}, so that a step doesn't end where the next one begins: set timestep_spacing to "
            "leading or trailing in scheduler_config.json"
        )


def refuse_clips(kind: str, config: Mapping[str, Any]) -> None:
    """Refuse a class of schedulers that clips the sample that is predicted in a way that no velocity has.

    Raises:
        Unsupported: it does, by its configuration.
    """
    clips = [key for key in ("thresholding", "clip_sample") if config.get(key)]
    if clips and kind in ("DDIMScheduler", "DDIMParallelScheduler", "HeunDiscreteScheduler"):
        name = EULER.get(kind)
        why = "but not the noise, which is no step along a velocity" if name is None else f"and {name} doesn't"
        raise Unsupported(
            f"its {kind} clips the sample that is predicted ({clips[0]}), {why}: set {clips[0]} to false in "
            "scheduler_config.json, or take DDPMScheduler, which clips both"
        )


def once_a_step(scheduler: Any) -> Any:
    """A scheduler, or one of the same noise levels that asks for one prediction per step, and for nothing else.

    Raises:
        Unsupported: see ``refuse_clips``; a class of the user's may have set another one than its folder has.
    """
    import diffusers

    kind, config = type(scheduler).__name__, scheduler.config
    refuse_clips(kind, config)
    return getattr(diffusers, EULER[kind]).from_config(config) if kind in EULER else scheduler


def _bound(scheduler: Any) -> Callable[[Tensor], Tensor] | None:
    """What steps make of the sample [B, ...] that is predicted; None where they take it as it is."""
    config = scheduler.config
    own = None if type(scheduler).__name__ == "TCDScheduler" else getattr(scheduler, "_threshold_sample", None)
    if config.get("thresholding") and own is not None and getattr(scheduler, "predict_x0", True):
        return own  # type: ignore[no-any-return]
    if config.get("clip_sample") and type(scheduler).__name__ in CLIPPING:
        limit = float(config.get("clip_sample_range", 1.0))
        return lambda clean: clean.clamp(-limit, limit)
    return None


@dataclass(frozen=True)
class NoiseSchedule:
    """Steps of a scheduler at times, t from 1 to 0, and what it calls these."""

    times: Tensor  # [N + 1] float32, decreasing: t of each step, and where the last one ends
    names: Tensor  # [N]; a last step of no length, as some tables of sigmas end with, is none
    kind: Kind
    dense: tuple[np.ndarray, np.ndarray]  # increasing times, and their names, to interpolate between
    skipped: int  # entries of the scheduler's table that the pipeline doesn't use, before the first step
    unit: float = 1.0  # of the noise in the scheduler's states

    @classmethod
    def of(cls, scheduler: Any, names: Tensor) -> NoiseSchedule:
        """Of a scheduler's timesteps [N], which it is set to.

        Raises:
            Unsupported: the noise levels don't decrease, or are of no known kind.
        """
        angles = type(scheduler).__name__ == ANGLES
        skipped = len(scheduler.timesteps) - len(names) - angles  # whose last one is the end
        if skipped and torch.equal(scheduler.timesteps[: len(names)].to(names), names):
            raise Unsupported(
                "it stops before its scheduler's last step, as one does that leaves the others to a second pipeline; "
                "remove denoising_end from rollout.call, or choose a pipeline that takes all steps"
            )
        signal, noise = _factors(scheduler, names, skipped)
        if (kind := kind_of(signal, noise)) is None:
            raise Unsupported("its scheduler mixes signal and noise in a way that Burnish doesn't know")
        if kind == "flow" and hasattr(scheduler, "scale_noise") and bool((noise > 1 + ROUNDING).any()):
            # its steps are Euler's at any level: the pipeline adds noise to the sample, as Cosmos's do
            kind, signal = "ve", torch.ones_like(noise)
        steps = ((signal if kind == "rising" else noise) / (signal + noise)).float()
        times = torch.cat([steps, torch.tensor([_end(scheduler, kind)])])
        if len(steps) > 1 and torch.isclose(times[-1], times[-2], rtol=ROUNDING, atol=0):
            steps, names, times = steps[:-1], names[:-1], times[:-1]
        if not bool((times[1:] < times[:-1]).all()):
            raise Unsupported(
                f"the noise levels of its {type(scheduler).__name__} don't decrease: {times.tolist()}; change what "
                "spaces them in scheduler_config.json"
            )
        if float(times[0]) > 1 + ROUNDING:
            raise Unsupported(
                f"the noise levels of its {type(scheduler).__name__} begin at {float(times[0]):.4g}, but pure noise "
                "is 1: leave out what spaces them in scheduler_config.json (use_exponential_sigmas, sigma_max), unless "
                "the pipeline's class sets it, as Cosmos's do; choose another pipeline then"
            )
        _refuse_gaps(scheduler, names)
        ends = [0.0, float(scheduler.config.get("num_train_timesteps", 1))][:: -1 if kind == "rising" else 1]
        dense = np.array([0.0, *steps.flip(0), 1.0]), np.array([ends[0], *names.flip(0), ends[1]])
        if kind in ("vp", "ve") and (table := getattr(scheduler, "alphas_cumprod", None)) is not None:
            a, s = table.double().cpu().sqrt().numpy(), (1 - table.double().cpu()).sqrt().numpy()
            dense = s / (a + s), np.arange(len(table))
        if angles:
            table = np.linspace(0, math.pi / 2, DENSE)
            dense = np.sin(table) / (np.sin(table) + np.cos(table)), table
        return cls(times, names, kind, dense, skipped, scheduler.config.sigma_data if angles else 1.0)

    def placed(self, name: str, table: Tensor, k: int, time: float) -> Tensor:
        """A scheduler's timesteps or sigmas, with the time at which step ``k`` begins."""
        here = self.name(time) if name == "timesteps" else table.new_tensor(sigma_at(self.kind, time))
        table = table.to(here.dtype, copy=True)
        table[self.skipped + k] = here
        return table

    def name(self, time: float) -> Tensor:
        """What the scheduler calls a time: exact at its own times, and interpolated at others."""
        if bool((own := self.times[:-1] == time).any()):
            return self.names[own][0]
        return torch.tensor(np.interp(time, *self.dense), dtype=torch.float32)

    def scale(self, time: float) -> float:
        """The scheduler's states over ours: a + s at a time."""
        return self.unit * {"ve": 1 / max(1 - time, SMALLEST), "vp": 1 / math.hypot(time, 1 - time)}.get(self.kind, 1.0)

    def velocity(self, scheduler: Any, output: Tensor, x: Tensor, time: float) -> Tensor:
        """eps - x_0 at a time, by the ``output`` and the sample ``x`` [B, ...] that the scheduler's step is given."""
        if str(scheduler.config.get("variance_type")).startswith("learned") and output.shape[1] == 2 * x.shape[1]:
            output = output.chunk(2, 1)[0]  # the other half is the variance of the scheduler's own noise
        velocity, x = self.predicted(scheduler, output, x, time), x.float() / self.scale(time)
        bound = _bound(scheduler)
        return velocity if bound is None else (x - bound(x - time * velocity)) / time

    def predicted(self, scheduler: Any, output: Tensor, x: Tensor, time: float) -> Tensor:
        """The same before the scheduler clips the sample that is predicted."""
        output, x = output.float(), x.float()
        if hasattr(scheduler, "precondition_outputs"):
            sigma = torch.tensor(sigma_at(self.kind, time), device=x.device)
            clean: Tensor = scheduler.precondition_outputs(x, output, sigma)
            return (x - clean) / sigma - clean
        predicts = scheduler.config.get("prediction_type", "epsilon")
        return velocity_of(self.kind, predicts, output, x, time) / self.unit
