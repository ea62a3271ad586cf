"""The arguments of a pipeline's ``__call__`` by its signature, and what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from burnish.diffusion.pipeline.schedules import Unsupported
from burnish.models.modular import pipeline_class
from burnish.options import Rules
from burnish.types.prompt import kinds_of
from burnish.types.samples import Clip, Kind, Sound
from burnish.utils.errors import UserError
from burnish.utils.images import NonFiniteImage
from burnish.utils.lru_cache import LruCache

if TYPE_CHECKING:
    from burnish.diffusion.options import RolloutOptions
    from burnish.types.media import Media
    from burnish.types.prompt import Prompt
    from burnish.types.rollout import Requests

OURS = ("generator", "num_inference_steps", "output_type", "return_dict", "prompt", "negative_prompt", "latents",
        "height", "width", "num_images_per_prompt", "num_videos_per_prompt")  # fmt: skip
CLASS = "class_labels"  # of pipelines that draw from the number of a class, which is then the prompt
IMAGES = ("image", "images", "input_images")  # arguments for the images of a prompt, of which a class has one
RATES = ("frame_rate", "fps")
MOVING = ("num_frames", "frames", "video_length", "video", "pose_video", "control_video")  # of those that return frames
EMBEDDED = ("Flux2Modular", "Flux2Pipeline", "FluxControl", "FluxFill", "FluxKontextModular", "FluxModular",
            "LatentConsistency", "SanaSprint", "VisualCloze")  # fmt: skip
"""Beginnings of names of pipelines whose guidance_scale is an input of the network, which no signature tells."""
NEEDS_NEGATIVE = "EasyAnimate"  # pipelines that fail without a negative prompt
KEPT_IMAGES = "GlmImage"  # pipelines whose denoiser computes keys and values of a prompt's images before the first step
EMBEDDINGS = ("_embeds", "_embeddings")  # ends of names of arguments that another stage of a cascade makes
CACHED = "use_kv_cache"  # of pipelines that keep keys and values of their first step for those that follow
WITH_OPACITY = 4  # channels
CHANNELS = (1, 3, WITH_OPACITY)  # of images
DARKEST = -0.05  # of images in [0, 1]: black is -0.02 in linear light (LTX2HDR)
DECODED = 256 << 20  # bytes of decoded images and frames that are kept: every step of a sample asks for its own
USUAL_RATE = 16.0  # frames per second of clips whose pipeline knows none
SOUND_RATE = 44_100  # samples per second of sounds whose pipeline states none
SOUND_RATES = ("output_sampling_rate", "sampling_rate", "sample_rate")
"""In the configuration of the network that makes a sound; the first counts, as a vocoder's does before its VAE's."""
SOUNDS = ("audios", "audio")  # fields of what pipelines return
SCHEDULED = "guidance_schedule"  # of pipelines that take a scale for each step, and no other: all are the run's
SOUND_GUIDANCE = "audio_guidance_scale"  # of the sound that is drawn with frames: the run's, as theirs


class Arguments:
    """Makes them of a request and the options of a rollout."""

    def __init__(self, kind: Any, rollout: RolloutOptions) -> None:
        """Args: ``kind`` of pipeline."""
        self.kind, self.rollout = kind, rollout
        self.parameters = inspect.signature(inspect.unwrap(kind.__call__)).parameters
        embedded = "true_cfg_scale" in self.parameters or kind.__name__.startswith(EMBEDDED)
        self.guidance = "true_cfg_scale" if embedded else "guidance_scale"
        if SCHEDULED in self.parameters and self.guidance not in self.parameters:
            self.guidance = SCHEDULED
        # without a negative prompt most take a default of their own; some leave guidance out, or fail
        self._negative = "" if self.guidance == "true_cfg_scale" or kind.__name__.startswith(NEEDS_NEGATIVE) else None
        self.sound_rate = SOUND_RATE
        self.signed = False  # whether images come in [-1, 1], as they do from some that are asked for tensors
        self._unguided = 0.0 if _guides_at_one(kind) else 1.0
        self._decoded: LruCache[list[Image.Image]] = LruCache(
            DECODED, lambda images: sum(3 * image.width * image.height for image in images)
        )
        self._images = next((name for name in IMAGES if name in self.parameters), IMAGES[0])
        self._rate = next((name for name in RATES if name in self.parameters), None)
        self._fixed: dict[str, Any] = {
            name: value for name, value in {
                "num_frames": rollout.num_frames,
                "max_sequence_length": rollout.max_sequence_length,
                CACHED: False if CACHED in self.parameters else None,  # each step is run by itself
                self._rate: rollout.fps,
                "guidance_scale": rollout.embedded_guidance,
            }.items() if name is not None and value is not None
        } | {name: self._typed(name, value) for name, value in rollout.call.items()}  # fmt: skip

    def _typed(self, name: str, value: Any) -> Any:
        """An argument of ``rollout.call``: a tuple where the pipeline takes no list, as recipes have none."""
        hint = str(self.parameters[name].annotation).lower() if name in self.parameters else ""
        return tuple(value) if isinstance(value, list) and "tuple" in hint and "list" not in hint else value

    @classmethod
    def of_index(cls, index: dict[str, Any], rollout: RolloutOptions, own: Any = None) -> Arguments:
        """Of the pipeline of a model_index.json, or of a class of the user's ``own``.

        Raises:
            UserError: diffusers doesn't have its class.
        """
        import diffusers

        named = str(index.get("_class_name"))
        kind = own or pipeline_class(named, index.get("_blocks_class_name"))
        drawing = [base for base in getattr(kind, "__mro__", ()) if "__call__" in vars(base)]
        if not drawing or not issubclass(kind, (diffusers.DiffusionPipeline, diffusers.ModularPipeline)):
            raise UserError(
                f"model.path holds a {named:.80}, which is not a pipeline of diffusers {diffusers.__version__}; "
                f"install a version of diffusers that has it, or give its code as model.family=FILE.py:{named:.80}"
            )
        return cls(kind, rollout)

    def check(self) -> None:
        """Refuse options that this pipeline doesn't take.

        Raises:
            UserError: naming the option.
        """
        rollout, who, taken = self.rollout, self.kind.__name__, self.parameters
        of_others = [
            name for name, one in taken.items()
            if one.default is inspect.Parameter.empty and name.endswith(EMBEDDINGS) and name not in rollout.call
        ]  # fmt: skip
        embedded = self.guidance != "guidance_scale" and "guidance_scale" in taken
        way = "has it as an input: use rollout.embedded_guidance" if embedded else "takes no guidance; remove it"
        ours = (*OURS, self.guidance, "self", *(("sigmas", "timesteps") if "num_inference_steps" in taken else ()))
        takes = ", ".join(key for key in taken if key not in ours)
        sizes = {name: getattr(rollout, name) for name in ("height", "width", "num_frames", "max_sequence_length")}
        rules: Rules = [
            (
                of_others,
                f"a {who} draws from {next(iter(of_others), '')}, which another pipeline makes of a prompt; Burnish "
                "trains pipelines that draw from a prompt by themselves: give such a one",
            ),
            *(
                (
                    value is not None and name not in taken,
                    f"rollout.{name} is {value}, but a {who} takes no {name}; remove it",
                )
                for name, value in sizes.items()
            ),
            (
                rollout.fps is not None and self._rate is None and self.draws != "clip",
                f"rollout.fps is {rollout.fps}, but a {who} draws no video; remove it",
            ),
            (
                rollout.guidance_scale != 1 and self.guidance not in taken,
                f"rollout.guidance_scale is {rollout.guidance_scale}, but a {who} {way}",
            ),
            (
                rollout.embedded_guidance is not None and not embedded,
                f"rollout.embedded_guidance is {rollout.embedded_guidance}, but the guidance of a {who} is classifier-"
                "free: use rollout.guidance_scale",
            ),
            (
                "scheduler" not in getattr(self.kind, "parts", ("scheduler",)),
                f"a {who} has no scheduler among its parts: its blocks take the steps themselves, and Burnish couldn't "
                "take other ones; choose a pipeline that has one",
            ),
            (
                "sag_scale" in taken,
                f"a {who} reads the attention of its network while it draws (self-attention guidance), which Burnish "
                "runs by itself; train the model by its plain pipeline, as StableDiffusionPipeline",
            ),
            *(
                (
                    name in ours or name not in taken,
                    f"rollout.call has {name!r}, which can't be given to a {who}; it takes {takes}",
                )
                for name in rollout.call
            ),
        ]
        refuse(rules)

    @property
    def draws(self) -> Kind:
        """What the pipeline returns, by what it is asked for and called."""
        name = self.kind.__name__
        if "Video" in name or any(one in self.parameters for one in MOVING):
            return "clip"
        heard = "Audio" in name or any(one.startswith("audio_") for one in self.parameters)
        return "sound" if heard else "image"

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that have images for a pipeline that takes none, or none for one that needs some.

        Raises:
            UserError: naming the first such prompt.
        """
        image, number = self.parameters.get(self._images), self.parameters.get(CLASS)
        needed = number is not None and number.default is inspect.Parameter.empty and CLASS not in self.rollout.call
        who = self.kind.__name__
        for prompt in prompts if needed else ():
            if not prompt.text.strip().isdecimal():
                raise UserError(
                    f"{prompt.name} is {prompt.text!r:.80}, but a {who} draws from the number of a class: give numbers "
                    "as prompts, such as 207"
                )
        for prompt in kinds_of(prompts):
            strange = [name for name, _ in prompt.inputs if name not in self.parameters]
            rules: Rules = [
                (prompt.images and image is None, f"{prompt.name} has an image, but a {who} takes none; remove it"),
                (
                    prompt.images and who.startswith(KEPT_IMAGES),
                    f"{prompt.name} has an image, whose keys and values a {who} computes once, by the network that is "
                    "trained: they would stay as they are while it learns; remove it",
                ),
                (strange, f"{prompt.name} has a {next(iter(strange), '')}, which a {who} doesn't take; remove it"),
                (
                    not prompt.images and image is not None and image.default is inspect.Parameter.empty,
                    f"{prompt.name} has no image, but a {who} needs one; give it as image",
                ),
            ]
            refuse(rules)

    def of(self, request: Requests, guidance: float) -> dict[str, Any]:
        """The arguments that draw what a row asks for, but for the generator."""
        prompt = request.prompts[0]
        guided = guidance > 1 or self.guidance not in self.parameters  # where a guider is a part, it decides
        scale = guidance if guidance > 1 else self._unguided
        wanted: dict[str, Any] = {
            "prompt": prompt.text, "height": request.height, "width": request.width,
            "num_inference_steps": request.steps, "output_type": "pt",
            self.guidance: [scale] * request.steps if self.guidance == SCHEDULED else scale, SOUND_GUIDANCE: scale,
            "negative_prompt": (prompt.negative or self._negative) if guided else None,
            CLASS: [int(prompt.text)] if prompt.text.strip().isdecimal() else None,
            "max_area": request.height * request.width if request.height and request.width else None,
        }  # fmt: skip
        wanted |= {name: self._shown(media) for name, media in prompt.inputs}
        if images := [self._shown(media) for media in prompt.images]:
            single = len(images) == 1 and self._images == IMAGES[0]
            wanted[self._images] = images[0] if single else images
        given = {key: value for key, value in wanted.items() if value is not None and key in self.parameters}
        return given | self._fixed

    def without(self, request: Requests, guidance: float) -> dict[str, dict[str, Any]]:
        """The arguments of a row without one of those that options and the record choose, or with another value where
        the pipeline has it by itself; by where it comes from."""
        given, negative = self.of(request, guidance), request.prompts[0].negative
        others = dict[str, dict[str, Any]]()
        chosen = {name: f"rollout.call has {name}={value!r:.80}" for name, value in self.rollout.call.items()}
        if (embedded := self.rollout.embedded_guidance) is not None:
            chosen["guidance_scale"] = f"rollout.embedded_guidance is {embedded:g}"
        if negative and (guidance > 1 or "negative_prompt" in given):
            chosen["negative_prompt"] = f"its negative_prompt is {negative!r:.80}"
        for name, option in chosen.items():
            own = self.parameters[name].default if name in self.parameters else None
            if name not in given or own != given[name]:
                if own is not inspect.Parameter.empty:
                    others[option] = {key: value for key, value in given.items() if key != name}
            elif isinstance(own, float):
                others[option] = given | {name: own + 1}
        return others

    def _shown(self, media: Media) -> Any:
        """An image, or the frames of a video: copies, since a pipeline may write to them."""
        kept = self._decoded.get((media.kind, media.digest), lambda: _decoded(media))
        copies = [one.copy() for one in kept]
        return copies[0] if media.kind == "image" else copies

    @property
    def fps(self) -> float:
        """Frames per second of clips."""
        if self.rollout.fps is not None:
            return self.rollout.fps
        known = self.parameters[self._rate].default if self._rate else None
        return float(known) if isinstance(known, int | float) else USUAL_RATE

    def read_rate(self, parts: Iterable[Any]) -> None:
        """Take the rate of sounds from the networks of a pipeline."""
        configs = [part.config for part in parts if isinstance(part, torch.nn.Module) and hasattr(part, "config")]
        stated = [getattr(config, name) for name in SOUND_RATES for config in configs if hasattr(config, name)]
        self.sound_rate = int(next(iter(stated), SOUND_RATE))

    def tensor(self, returned: Any) -> Tensor:
        """Images [1, 3, H, W], or frames [1, F, 3, H, W], in [0, 1] of what the pipeline returned for one row.

        What is transparent in them shows white.
        """
        pixels = self.values(returned)
        if self.signed:
            pixels = (pixels / 2 + 0.5).clamp(0, 1)
        if pixels.ndim > 3 and pixels.shape[-3] == WITH_OPACITY:
            opacity = pixels[..., 3:, :, :].clamp(0, 1)
            pixels = pixels[..., :3, :, :] * opacity + 1 - opacity
        channels = pixels if pixels.ndim > 4 or "frames" not in _names(returned) else pixels[None]
        return channels.expand(*channels.shape[:-3], 3, -1, -1)

    def values(self, returned: Any) -> Tensor:
        """The numbers of what the pipeline returned for one row."""
        found = next(iter(returned if isinstance(returned, tuple) else vars(returned).values()))
        # of frames, or of images that belong together, there is a list for each sample
        nested = isinstance(found, list) and (isinstance(found[0], list) or getattr(found[0], "ndim", 0) > 3)
        values = _as_tensor(found[0] if nested else found)
        values = values[None] if values.ndim == 3 and self.draws == "image" else values
        # some give arrays with the channels last, whatever they are asked for
        last = values.ndim > 3 and values.shape[-1] in CHANNELS and values.shape[-3] not in CHANNELS
        return values.movedim(-1, -3) if last else values

    def wave(self, returned: Any) -> Tensor | None:
        """The sound [channels, N] of what the pipeline returned for one row; None without one."""
        found = next((value for name in SOUNDS if (value := getattr(returned, name, None)) is not None), None)
        return None if found is None else torch.atleast_2d(torch.as_tensor(found[0]).float())

    def parts(self, returned: Any) -> list[Tensor]:
        """``values``, and the sound that belongs to frames."""
        wave = self.wave(returned)
        return [self.values(returned), *([] if wave is None else [wave])]

    def check_returned(self, returned: Any) -> None:
        """Look at the first sample. It tells whether images come in [-1, 1], which ``signed`` keeps.

        Raises:
            Unsupported: it is no single image, clip or sound.
        """
        if (name := next(iter(_names(returned)), "")).endswith(EMBEDDINGS):
            raise Unsupported(
                f"it returns {name}, from which another pipeline draws, and no image, clip or sound that a reward "
                "could score; give a pipeline that draws from a prompt by itself"
            )
        values = self.values(returned)
        if self.draws == "image" and values.ndim > 3 and len(values) > 1:
            raise Unsupported(
                f"it draws {len(values)} images for one prompt, and a reward scores one; choose a pipeline that "
                "draws one, or ask for one in rollout.call"
            )
        self.signed |= self.draws != "sound" and bool((values < DARKEST).any())

    def sample(self, returned: Any, *, finite: Tensor) -> Any:
        """An image, a clip or a sound of what the pipeline returned for one row, whose state is ``finite`` or not."""
        wave, sound = self.wave(returned), None
        if wave is not None:
            sound = Sound.of(wave.cpu().numpy(), self.sound_rate)
            if _names(returned)[0] in SOUNDS:
                return sound
        pixels = self.tensor(returned)[0]
        all_finite = finite.to(pixels.device) & pixels.isfinite().all()
        # rounded as by diffusers' image processor; both come in one copy, so that the CPU waits once
        values = (pixels.nan_to_num(0.0).clamp(0, 1) * 255).round().to(torch.uint8)
        both = torch.cat([values.flatten(), all_finite.to(torch.uint8)[None]]).cpu()
        rounded, good = both[:-1].view(values.shape), bool(both[-1])
        if pixels.ndim == 4:
            return Clip(frames=rounded.permute(0, 2, 3, 1).contiguous().numpy(), fps=self.fps, sound=sound, finite=good)
        image = rounded.permute(1, 2, 0).contiguous().numpy()
        return image if good else image.view(NonFiniteImage)


def refuse(rules: Rules) -> None:
    """Raises: UserError: with the message of the first rule that is broken."""
    if told := next((message for broken, message in rules if broken), None):
        raise UserError(told)


def _guides_at_one(kind: Any) -> bool:
    """Whether a pipeline adds its scale to 1, so that a guidance of 1 is on and 0 is none (Z-Image, Krea 2)."""
    found = getattr(kind, "do_classifier_free_guidance", None)
    try:
        return isinstance(found, property) and bool(found.fget(SimpleNamespace(_guidance_scale=1.0)))  # type: ignore[misc]
    except AttributeError:  # asks more of a pipeline than its scale, which none does whose 1 is on
        return False


def _decoded(media: Media) -> list[Image.Image]:
    """An image, or frames as all pipelines take them; arrays are read as floats by some."""
    return [media.image()] if media.kind == "image" else [Image.fromarray(frame) for frame in media.video()[0]]


def _as_tensor(found: Any) -> Tensor:
    """Arrays, tensors or images, or a list of them, as one tensor of floats; colours of images in [0, 1]."""
    if isinstance(found, list):
        return torch.stack([_as_tensor(one) for one in found])
    return torch.as_tensor(np.array(found) / 255 if isinstance(found, Image.Image) else found).float()


def _names(returned: Any) -> list[str]:
    """Names of a pipeline's output."""
    return [] if isinstance(returned, tuple) else list(vars(returned))
