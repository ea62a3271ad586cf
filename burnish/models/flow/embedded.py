"""What hand-written families of text-to-image pipelines share: prompts embedded once, pictures decoded by the VAE."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from burnish.models.flow.pipeline import LoadedPipeline
from burnish.models.flow.truncation import (
    longer,
    refuse_long,
    refuse_unknown,
    tokenizers_of,
    vocabularies_of,
)
from burnish.types.packed import kinds_of, texts_of
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError
from burnish.utils.images import NonFiniteImage
from burnish.utils.json_text import read_object
from burnish.utils.lru_cache import LruCache, in_bytes

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn

    from burnish.flow.schedules import Kind
    from burnish.models.flow.base import Agree, Drawing
    from burnish.options.flow import ModelOptions, RolloutOptions
    from burnish.types.batch import Gathered
    from burnish.types.rollout import Conditioning
    from burnish.utils.random import Part

SCHEDULER = "FlowMatchEulerDiscreteScheduler"
LONGEST_TEXT = 512  # T5 tokens that diffusers' pipelines read at most
DISTILLED_GUIDANCE = 3.5  # default guidance input of FluxPipeline
MEND = "restore config.json of its text encoders and tokenizer_config.json of its tokenizers, or fetch the model again"
LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as in PIL's conversion to grey


@dataclass(frozen=True)
class Grid:
    """Layout of latents and image tokens."""

    channels: int  # of latents
    patch: int  # latent positions per side of an image token
    side: int  # latent positions per side of the default picture
    largest: int | None  # image tokens per side at most


class EmbeddedPipeline(LoadedPipeline):
    """A model that calls the parts of a diffusers pipeline itself. Without a VAE it works in pixel space.

    A family adds how prompts are encoded and how its network is called.
    """

    pipeline_class: ClassVar[str]
    transformer_class: ClassVar[str] = ""  # that it calls; "" for any
    placement: ClassVar[Kind]
    lora_targets: ClassVar[tuple[str, ...]]
    t5: ClassVar[str]  # name of T5's tokenizer
    default_text_length: ClassVar[int]

    def __init__(self, pipeline: Any, options: ModelOptions, rollout: RolloutOptions, *, compute: torch.dtype) -> None:
        from burnish.types.batch import size_of

        super().__init__(pipeline, options, rollout, compute=compute)
        self.scheduler_config = dict(pipeline.scheduler.config)
        length, guidance = rollout.max_sequence_length, rollout.embedded_guidance
        self.text_length = self.default_text_length if length is None else length
        self.embedded_guidance: float | None = None
        if pipeline.transformer.config.get("guidance_embeds", False):
            self.embedded_guidance = DISTILLED_GUIDANCE if guidance is None else guidance
        self._embedded: LruCache[Conditioning] = LruCache(in_bytes(options.cache_gb), size_of)

    @classmethod
    def load(cls, *args: Any, **kwargs: Any) -> Self:
        model = super().load(*args, **kwargs)
        if model.pipeline.vae is None and model.grid.channels not in (1, 3):
            raise UserError(
                f"without a VAE its latents are pictures of 1 or 3 channels, but they have {model.grid.channels}"
            )
        return model

    @classmethod
    def check_options(cls, path: Path, index: dict[str, Any], rollout: RolloutOptions) -> None:
        """Refuse options that the pipeline at ``path`` doesn't support, by its configuration files alone.

        Raises:
            UserError: it is of another family, the text is too long for T5, or it has no guidance embedding.
        """
        if odd := cls.unknown_scheduler(path, index):
            raise UserError(
                f"model.family is {cls.name}, which knows the noise levels of {SCHEDULER} alone, but model.path has "
                f"{odd}; leave model.family out, or set model.family=pipeline"
            )
        listed = index.get("transformer")
        network = listed[1] if isinstance(listed, list) and len(listed) == 2 else None
        if cls.transformer_class and network not in (None, cls.transformer_class):
            raise UserError(
                f"model.family is {cls.name}, which calls a {cls.transformer_class}, but model.path is a "
                f"{index.get('_class_name')} with {network}; leave model.family out, or set model.family=pipeline"
            )
        length, embedded_guidance = rollout.max_sequence_length, rollout.embedded_guidance
        if length is not None and length > LONGEST_TEXT:
            raise UserError(
                f"rollout.max_sequence_length is {length}, but a {cls.pipeline_class} reads at most "
                f"{LONGEST_TEXT} tokens; lower it"
            )
        unread = {"num_frames": rollout.num_frames, "fps": rollout.fps, "call": rollout.call}
        if given := [name for name, value in unread.items() if value]:
            raise UserError(
                f"rollout.{given[0]} is {unread[given[0]]}, which a {cls.pipeline_class} never reads; leave it out, or "
                "use model.family=pipeline"
            )
        if embedded_guidance is None:
            return
        config = read_object(path / "transformer" / "config.json")
        if not config.get("guidance_embeds", False):
            raise UserError(
                f"rollout.embedded_guidance is {embedded_guidance}, but this {cls.pipeline_class} has no guidance "
                "embedding (guidance_embeds in transformer/config.json): leave it out, or use rollout.guidance_scale"
            )

    @classmethod
    def unknown_scheduler(cls, path: Path, index: dict[str, Any]) -> str:
        """The scheduler, or the option of it, whose noise levels the family doesn't know; "" where it knows them."""
        from burnish.flow.schedules import SPACED_OTHERWISE

        listed = index.get("scheduler")
        name = listed[1] if isinstance(listed, list) and len(listed) == 2 else SCHEDULER
        if name != SCHEDULER:
            return str(name)
        file = path / "scheduler" / "scheduler_config.json"
        config = read_object(file) if file.is_file() else {}
        return next((f"{key} in its configuration" for key in SPACED_OTHERWISE if config.get(key)), "")

    @property
    def grid(self) -> Grid:
        """Layout of latents and image tokens."""
        raise NotImplementedError

    @property
    def scale(self) -> int:
        """Pixels per side of a latent position."""
        return 1 if self.pipeline.vae is None else self.pipeline.vae_scale_factor

    @classmethod
    def check_inputs(cls, index: dict[str, Any], rollout: RolloutOptions, prompts: Sequence[Prompt]) -> None:
        for prompt in kinds_of(prompts):
            if prompt.images or prompt.inputs:
                what = f"a {prompt.inputs[0][0]}" if prompt.inputs else "a picture"
                raise UserError(
                    f"{prompt.name} has {what}, but a {cls.pipeline_class} draws from text alone; leave it out, or "
                    "train a pipeline that takes pictures"
                )

    def check(self, prompts: Sequence[Prompt]) -> None:
        pass  # ``check_lengths`` has read all of them, before any weight

    @classmethod
    def check_lengths(
        cls, path: Path, index: dict[str, Any], rollout: RolloutOptions, prompts: Sequence[Prompt]
    ) -> None:
        cls._refuse(tokenizers_of(path, index), vocabularies_of(path, index), rollout, partial(texts_of, prompts))

    def check_texts(self, texts: Collection[str]) -> None:
        """Refuse texts that the text encoders would truncate, or that have tokens which they don't know.

        Raises:
            UserError: with the first such text.
        """
        parts = self.pipeline.components
        encoders = {name: part for name, part in parts.items() if "text_encoder" in name and part is not None}
        known = {name: part.get_input_embeddings().num_embeddings for name, part in encoders.items()}
        self._refuse(parts, known, self.rollout, lambda: texts)

    @classmethod
    def _refuse(
        cls,
        parts: Mapping[str, Any],
        known: Mapping[str, int],
        rollout: RolloutOptions,
        texts: Callable[[], Iterable[str]],
    ) -> None:
        """Args: ``parts`` are the pipeline's, tokenizers at least; ``known`` are the text encoders' vocabularies."""
        tokenizer, what = parts.get("tokenizer"), "tokens of the CLIP tokenizer"
        if (t5 := parts.get(cls.t5)) is not None:
            tokenizer, what = t5, "tokens of the T5 tokenizer (rollout.max_sequence_length)"
        if tokenizer is None:
            raise UserError("model.path has no tokenizer in its model_index.json; fetch the model again")
        length = rollout.max_sequence_length
        asked = cls.default_text_length if length is None else length
        limit = tokenizer.model_max_length if t5 is None else asked
        refuse_long(longer(tokenizer, texts(), limit), limit, what)
        for name, size in known.items():
            other = parts.get(name.replace("text_encoder", "tokenizer"))
            if other is not None:
                refuse_unknown(other, texts(), name, size)

    def condition(
        self, prompts: Sequence[Prompt], drawing: Drawing, check_cancelled: Callable[[], None] = lambda: None
    ) -> Gathered[Conditioning]:
        import torch

        from burnish.models.flow.failures import explained
        from burnish.types.batch import Gathered, in_precision
        from burnish.types.rollout import Conditioning

        texts = [prompt.text for prompt in prompts]
        unique = list(dict.fromkeys(texts))

        def encoded(text: str) -> Conditioning:
            check_cancelled()
            # one at a time: an embedding must not depend on what else was encoded with it
            with explained(self.class_name, f"embeds no prompt: reading {text!r:.60}", MEND):
                found: Conditioning = in_precision(self.encode([text]), self.compute).to("cpu")
            return found

        table = Conditioning.cat([self._embedded.get(text, partial(encoded, text)) for text in unique])
        for part in self.away:
            part.leave()  # before ranks gather the network that is to run next
        row = {text: i for i, text in enumerate(unique)}
        return Gathered(table=table, index=torch.tensor([row[text] for text in texts]))

    def encode(self, texts: Sequence[str]) -> Conditioning:
        """Embeddings of texts, one row each, without gradients."""
        raise NotImplementedError

    def start(self, conditioning: Gathered[Conditioning], drawing: Drawing, keys: Sequence[tuple[Part, ...]]) -> Tensor:
        from burnish.utils import random

        return random.normal(self.latent_shape(drawing.height, drawing.width), keys)

    def noised(self, conditioning: Gathered[Conditioning]) -> None:
        return None

    def schedule(self, conditioning: Gathered[Conditioning], drawing: Drawing) -> Tensor:
        from burnish.flow.schedules import schedule

        kind = self.placement if self.rollout.schedule == "diffusers" else self.rollout.schedule
        tokens = self.image_tokens(self.latent_shape(drawing.height, drawing.width))
        return schedule(drawing.steps, self.scheduler_config, kind=kind, shift=self.rollout.shift, tokens=tokens)

    def predict(
        self, network: nn.Module, x: Tensor, time: Tensor, conditioning: Conditioning, unconditional: Conditioning,
        *, guidance: float, agree: Agree | None = None,
    ) -> Tensor:  # fmt: skip
        import torch

        from burnish.flow.sampling import guide
        from burnish.types.rollout import Conditioning

        if guidance == 1:  # the unconditional half is not computed
            return self.velocity(network, x, time, conditioning)
        both = Conditioning.cat([conditioning, unconditional])
        velocity = self.velocity(network, torch.cat([x, x]), torch.cat([time, time]), both)
        towards, away = velocity.chunk(2)
        return guide(towards, away, guidance, rescale=self.rollout.guidance_rescale)

    def verify(self, conditioning: Gathered[Conditioning], *, guidance: float) -> None:
        pass  # tests compare a hand-written family with its pipeline

    def velocity(self, network: nn.Module, x: Tensor, time: Tensor, conditioning: Conditioning) -> Tensor:
        """eps - x_0 without guidance at latents [M, ...] and times [M]: [M, ...] float32."""
        raise NotImplementedError

    def latent_shape(self, height: int | None, width: int | None) -> tuple[int, ...]:
        """Shape of a sample's latents; None takes the model's default size.

        Raises:
            UserError: the model doesn't support the size.
        """
        standard = self.grid.side * self.scale
        rows = self._positions("rollout.height", standard if height is None else height)
        columns = self._positions("rollout.width", standard if width is None else width)
        return (self.grid.channels, rows, columns)

    def image_tokens(self, shape: Sequence[int]) -> int:
        """Image tokens of latents of a shape."""
        return (shape[-2] // self.grid.patch) * (shape[-1] // self.grid.patch)

    def decode_tensor(self, latents: Tensor, conditioning: Conditioning | None = None) -> Tensor:
        import torch

        vae, pixels = self.pipeline.vae, latents.float()
        if vae is not None:
            # one picture at a time, because decoding needs far more memory than denoising
            scaled = pixels / vae.config.scaling_factor + (vae.config.shift_factor or 0.0)
            pixels = torch.cat([vae.decode(one, return_dict=False)[0] for one in scaled.split(1)])
        pixels = (pixels / 2 + 0.5).clamp(0, 1)
        return pixels.expand(-1, 3, -1, -1)

    def decode(self, latents: Tensor, conditioning: Conditioning | None = None) -> list[np.ndarray]:
        import torch

        with torch.no_grad():
            pixels = self.decode_tensor(latents)
            # both are checked: clamping hides infinite latents, and a VAE can turn finite ones into NaN
            finite = (latents.flatten(1).isfinite().all(1) & pixels.flatten(1).isfinite().all(1)).tolist()
            # rounded as by diffusers' image processor
            rounded = (pixels.nan_to_num(0.0) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu()
        pictures = [picture.contiguous().numpy() for picture in rounded]
        return [picture if good else NonFiniteImage.of(picture) for picture, good in zip(pictures, finite, strict=True)]

    def encode_pictures(self, pictures: Sequence[np.ndarray], conditioning: Conditioning | None = None) -> Tensor:
        import numpy as np
        import torch

        shapes = {picture.shape for picture in pictures}
        if len(shapes) != 1 or (shape := shapes.pop())[2:] != (3,):
            raise UserError(f"pictures have shapes {sorted(shapes)}; all must have the same shape [H, W, 3]")
        for what, side in zip(("height", "width"), shape[:2], strict=True):
            self._positions(f"the {what} of a picture", side)
        pixels = torch.from_numpy(np.stack(pictures)).to(self.device).permute(0, 3, 1, 2).float() / 127.5 - 1
        vae = self.pipeline.vae
        if vae is None:
            grey = (pixels * pixels.new_tensor(LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True)
            return grey if self.grid.channels == 1 else pixels
        with torch.no_grad():
            means = torch.cat([vae.encode(one, return_dict=False)[0].mode() for one in pixels.split(1)])
        latents: Tensor = (means - (vae.config.shift_factor or 0.0)) * vae.config.scaling_factor
        return latents

    def _positions(self, what: str, side: int) -> int:
        """Latent positions along a side of ``side`` pixels; ``what`` is its name in messages."""
        unit, largest = self.scale * self.grid.patch, self.grid.largest
        if side % unit:
            raise UserError(
                f"{what} is {side}, but this model needs multiples of {unit} pixels; "
                f"use {max(side // unit, 1) * unit} or {(side // unit + 1) * unit}"
            )
        if largest is not None and side // unit > largest:
            raise UserError(f"{what} is {side}, but this model supports at most {largest * unit} pixels; lower it")
        return side // self.scale
