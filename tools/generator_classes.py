"""Pipeline classes of diffusers that the table has no row for, grouped by the reason."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from typing import Any

# by name: why they can't be trained; the first pattern counts
CANNOT = (
    ("Onnx", "networks in ONNX have no gradients"),
    ("^LTX2LatentUpsample|^LTXLatentUpsample|^LTX2VideoDiffusionDecode|Redux|Marigold|Gemma|LLaDA|Proteina",
     "nothing that is drawn by denoising: they enlarge latents, estimate depth, write text or fold proteins"),
    ("^Cosmos(Text|Video)ToWorld", "a step of their scheduler is taken twice, the second time from a prediction"),
    ("DiffusionForcing|^AnyFlowFAR|^Helios|KVPipeline|Framepack|LongMultiPrompt|^WanAnimate|^MiniMaxMusic3",
     "chunks, frames or seconds that are denoised one after the other, with state that goes from one to the next"),
    ("Prior|Combined|^Kandinsky(V22|Img2Img|Inpaint|Pipeline)|^StableCascade|^StableUnCLIP|^Wuerstchen|^UnCLIP|TemporalRefine",
     "a stage of a cascade: one draws embeddings or latents, and the next draws from these, not from a prompt"),
    ("Upscale|SuperResolution|Refiner|Kandinsky6SR", "they enlarge a finished image"),
    ("^ConsistencyModel|^ScoreSde|^KarrasVe|^RePaint|^DanceDiffusion",
     "no prompt: they draw without one, by schedulers that Burnish doesn't know"),
    ("^Cosmos[23]",
     "they need cosmos_guardrail and torchvision, which Burnish does not install; the checks on load decide"),
    ("^OmniGen", "diffusers reads their images by torchvision, which Burnish does not install"),
    ("^BriaFiboEdit|^VisualCloze", "asked by JSON or by a grid of images, not by text and images"),
    ("^StableAudio3(AudioToAudio|Inpaint)", "they begin from a sound, which prompts of generators don't have"),
    ("^EasyAnimateInpaint", "their call takes videos and masks as tensors alone, and prompts have frames"),
    ("^Kandinsky5I2I|^Kandinsky5T2I|^JoyImageEdit|^QwenImageEditInpaint",
     "their code draws or reads images at 1024 × 1024 alone, too long for a CPU; the checks on load decide"),
    ("^Allegro", "its VAE decodes in tiles of 24 frames alone (`model.vae_tiling=true`), too long for a CPU"),
    ("^ChromaInpaint|^EasyAnimateControl", "their own call fails in diffusers 0.42"),
    ("^MiniMaxH3", "frames and sound whose schedulers have other times in the same iteration"),
    ("^LTX25",
     "a network that denoises decodes their frames, too large for a CPU; the checks on load decide"),
    ("^EchoModular", "their blocks take steps of their own, without a scheduler"),
    ("^ShapE", "they draw the weights of a three-dimensional shape"),
    ("^Amused|^VQDiffusion", "tokens in place of noise levels"),
)  # fmt: skip
DEPRECATED = "deprecated by diffusers"
NEEDS = "diffusers offers them only beside another package"
VARIANT = "variants of classes in the tables, by the same networks: an image or a control to begin from; not measured"
UNTRIED = "nothing is known against them, but they are not measured yet; the checks on load decide"


def groups(measured: Collection[str]) -> dict[str, list[str]]:
    """The other classes by reason, each without the end of its name.

    Args:
        measured: classes that have a row.
    """
    import diffusers

    found: dict[str, list[str]] = {}
    for name in sorted(set(dir(diffusers)) - set(measured)):
        kind = getattr(diffusers, name, None) if name.endswith("Pipeline") else None
        if isinstance(kind, type) and kind not in (diffusers.DiffusionPipeline, diffusers.ModularPipeline):
            found.setdefault(reason(name, kind), []).append(name.removesuffix("Pipeline"))
    order = [*(why for _, why in CANNOT), DEPRECATED, NEEDS, VARIANT, UNTRIED]
    return {why: found[why] for why in order if why in found}


def reason(name: str, kind: Any) -> str:
    """Why a class has no row."""
    if hasattr(kind, "_backends"):  # of what stands in for a class whose packages are missing
        packages = sorted({one for one in kind._backends if one not in ("torch", "transformers")})
        return NEEDS if packages else UNTRIED
    for pattern, why in CANNOT:
        if re.search(pattern, name):
            return why
    if "deprecated" in inspect.getfile(kind) or _is_deprecated(kind):
        return DEPRECATED
    return VARIANT if re.search("ControlNet|Adapter|Img2Img|Inpaint|VideoToVideo|AudioToAudio", name) else UNTRIED


def _is_deprecated(kind: type) -> bool:
    return any("Deprecated" in base.__name__ for base in kind.__mro__)
