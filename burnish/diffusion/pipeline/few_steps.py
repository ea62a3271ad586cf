"""Generators that were distilled to draw in a few steps, recognised from their configuration files.

What teaches a velocity at many noise levels takes such a model apart: it blurs, or returns to what many steps draw.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.utils.json_text import read_object

NAMES = re.compile(r"(?<![a-z])(turbo|schnell|lightning|lcm|distilled|few[-_]?steps?|dmd2?|sprint)(?![a-z])", re.I)
FEW_STEP_SCHEDULERS = ("LCMScheduler", "FlowMatchLCMScheduler", "SCMScheduler", "TCDScheduler")
FEW_STEP_PIPELINES = re.compile(r"SanaSprint\w*Pipeline|LatentConsistencyModel\w*Pipeline")
FEW = 9  # most denoising steps of such a model
PARTS = ("transformer", "unet", "scheduler")

Configurations = Mapping[str, Mapping[str, Any]]  # of the pipeline, as "", and of its parts by name


@dataclass(frozen=True)
class Sign:
    """Something in configuration files that few-step models have, and others have not."""

    words: str  # what it is, in a message
    models: str  # for example
    there: Callable[[Configurations], bool]


def _spaced_for_few(config: Configurations) -> bool:
    scheduler = config["scheduler"]
    diffusion = re.fullmatch(r"StableDiffusion(XL)?\w*Pipeline", str(config[""].get("_class_name")))
    plain = scheduler.get("prediction_type", "epsilon") == "epsilon"  # v-prediction down to pure noise needs it, too
    return bool(diffusion) and plain and scheduler.get("timestep_spacing") == "trailing"


SIGNS = (
    Sign(
        "is_distilled is true in model_index.json", "FLUX.2-klein, Krea2-Turbo",
        lambda c: bool(c[""].get("is_distilled")),
    ),
    Sign(
        "its transformer has no guidance input (guidance_embeds is false)", "FLUX.1-schnell",
        lambda c: c[""].get("_class_name") == "FluxPipeline" and c["transformer"].get("guidance_embeds") is False,
    ),
    Sign(
        "its pipeline's class draws in a few steps", "SANA-Sprint",
        lambda c: bool(FEW_STEP_PIPELINES.fullmatch(str(c[""].get("_class_name")))),
    ),
    Sign(
        "its scheduler is one for a few steps", "LCM, TCD",
        lambda c: c["scheduler"].get("_class_name") in FEW_STEP_SCHEDULERS,
    ),
    Sign("its scheduler spaces steps from the end (timestep_spacing is trailing)", "SDXL-Turbo", _spaced_for_few),
)  # fmt: skip


def sign_of_few_steps(folder: Path, index: Mapping[str, Any], name: str) -> str:
    """Why a pipeline seems to be a few-step model; "" where it doesn't.

    Args:
        folder: of the pipeline.
        index: its model_index.json.
        name: by which the user calls it; a name such as Z-Image-Turbo is all that tells it from its base.
    """
    config: dict[str, Mapping[str, Any]] = {"": index}
    for part in PARTS:
        file = folder / part / ("scheduler_config.json" if part == "scheduler" else "config.json")
        config[part] = read_object(file) if file.is_file() else {}
    for sign in SIGNS:
        if sign.there(config):
            return f"{sign.words}, as with {sign.models}"
    named = (sign_of_name(one) for one in (name, *(str(part.get("_name_or_path", "")) for part in config.values())))
    return next(filter(None, named), "")


def sign_of_name(path: str) -> str:
    """What the last part of a path, or of a name of the hub, says about a few-step model or adapter; "" if nothing."""
    called = Path(path).name
    found = NAMES.search(called)
    return f"{called} has {found.group()!r} in its name" if found else ""
