"""What a pipeline that is drawn by its own call can be asked for, and what it gives: options, prompts, samples."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from diffusers import DiffusionPipeline
from diffusers.configuration_utils import FrozenDict
from torch import Tensor, nn

from burnish.models.flow.arguments import Arguments
from burnish.models.flow.base import Drawing
from burnish.models.flow.encoding import Arrangement
from burnish.models.flow.failures import explained
from burnish.models.flow.levels import Unsupported, check_scheduler
from burnish.models.flow.networks import attention_layers
from burnish.models.flow.pipeline import LoadedPipeline
from burnish.models.flow.truncation import refuse_unknown, tokenizers_of, truncated, vocabularies_of
from burnish.types.batch import Gathered
from burnish.types.packed import texts_of
from burnish.types.prompt import Prompt
from burnish.types.rollout import Requests
from burnish.utils import random
from burnish.utils.errors import UserError
from burnish.utils.lru_cache import LruCache

if TYPE_CHECKING:
    from burnish.options.flow import ModelOptions, RolloutOptions
    from burnish.types.clips import Kind


class PixelSpace(nn.Module):
    """Encodes and decodes to the same values, in [-1, 1]."""

    config = FrozenDict({"scaling_factor": 1.0, "shift_factor": 0.0, "block_out_channels": (1,), "latent_channels": 1})
    dtype = torch.float32

    def encode(self, pixels: Tensor, return_dict: bool = True) -> Any:
        """Pixels [B, C, H, W] as they are."""
        return SimpleNamespace(latent=pixels)

    def decode(self, latents: Tensor, return_dict: bool = True) -> Any:
        """Latents [B, C, H, W] as they are."""
        return SimpleNamespace(sample=latents) if return_dict else (latents,)


log = logging.getLogger(__name__)
LATEST = 256  # prompts with pictures whose schedules and masks are kept


class CalledPipeline(LoadedPipeline):
    """A pipeline whose conditioning is the prompt itself, and whose samples are what its call returns.

    A family adds how its runs begin and end.
    """

    def __init__(self, pipeline: Any, options: ModelOptions, rollout: RolloutOptions, *, compute: torch.dtype) -> None:
        super().__init__(pipeline, options, rollout, compute=compute)
        if inner := [type(part).__name__ for part in vars(pipeline).values() if isinstance(part, DiffusionPipeline)]:
            raise UserError(
                f"a {self.class_name} can't be trained: it runs other pipelines one after the other; give the one of "
                f"them that draws from a prompt ({', '.join(inner)}) as _class_name in model_index.json"
            )
        self.arguments = Arguments(type(pipeline), rollout)
        self.arguments.read_rate(pipeline.components.values())
        self._arranged: LruCache[Arrangement] = LruCache(LATEST)

    def first(self, request: Requests, seed: int) -> Tensor:
        """The pipeline's own first state for a seed: [...] float32."""
        raise NotImplementedError

    def tail(self, request: Requests, x: Tensor, decode: Any = None) -> Any:
        """What the pipeline returns for a final state [1, ...]; ``decode`` is in place of the VAE's method."""
        raise NotImplementedError

    def key(self, request: Requests) -> Any:
        """What decides on schedule, states and masks: for prompts with pictures, the prompt too."""
        prompt = request.prompts[0]
        pictured = bool(prompt.images or prompt.inputs)
        return request.height, request.width, request.steps, prompt.uid if pictured else ""

    @classmethod
    def check_options(cls, path: Path, index: dict[str, Any], rollout: RolloutOptions) -> None:
        """Refuse options that the pipeline's own call doesn't take, before any weight is loaded.

        Raises:
            UserError: the pipeline's class is unknown, its scheduler has no noise levels, or an option has nothing to
                act on.
        """
        arguments = Arguments.of_index(index, rollout)
        arguments.check()
        with explained(arguments.kind.__name__):
            check_scheduler(path, index, rollout)

    @classmethod
    def draws(cls, index: dict[str, Any], rollout: RolloutOptions) -> Kind:
        return Arguments.of_index(index, rollout).draws

    @classmethod
    def check_inputs(cls, index: dict[str, Any], rollout: RolloutOptions, prompts: Sequence[Prompt]) -> None:
        Arguments.of_index(index, rollout).check_prompts(prompts)

    @classmethod
    def instead_of(cls, name: str) -> Any:
        return PixelSpace() if name == "vae" else None

    @cached_property
    def lora_targets(self) -> list[str]:
        """The linear layers of attention modules."""
        return attention_layers(self.network)

    def check(self, prompts: Sequence[Prompt]) -> None:
        self.arguments.check_prompts(prompts)

    @classmethod
    def check_lengths(
        cls, path: Path, index: dict[str, Any], rollout: RolloutOptions, prompts: Sequence[Prompt]
    ) -> None:
        kind, tokenizers = Arguments.of_index(index, rollout).kind, tokenizers_of(path, index)
        for encoder, size in vocabularies_of(path, index).items():
            if tokenizer := tokenizers.get(encoder.replace("text_encoder", "tokenizer")):
                refuse_unknown(tokenizer, texts_of(prompts), encoder, size)
        if warning := truncated(kind, tokenizers.values(), rollout.max_sequence_length, texts_of(prompts)):
            log.warning(warning)

    def condition(
        self, prompts: Sequence[Prompt], drawing: Drawing, check_cancelled: Callable[[], None] = lambda: None
    ) -> Gathered[Requests]:
        unique = {prompt.uid: prompt for prompt in prompts}
        row = {uid: i for i, uid in enumerate(unique)}
        table = Requests(prompts=list(unique.values()), height=drawing.height, width=drawing.width, steps=drawing.steps)
        return Gathered(table=table, index=torch.tensor([row[prompt.uid] for prompt in prompts]))

    def start(
        self, conditioning: Gathered[Requests], drawing: Drawing, keys: Sequence[tuple[random.Part, ...]]
    ) -> Tensor:
        requests = conditioning.rows().each()
        return torch.stack([self.first(one, random.key(*key)) for one, key in zip(requests, keys, strict=True)])

    def decode(self, latents: Tensor, conditioning: Requests) -> list[Any]:
        with torch.no_grad():
            return [
                self.arguments.sample(self.tail(request, x), finite=x.isfinite().all())
                for request, x in zip(conditioning.each(), latents.split(1), strict=True)
            ]

    def decode_tensor(self, latents: Tensor, conditioning: Requests) -> Tensor:
        rows = zip(conditioning.each(), latents.split(1), strict=True)
        try:
            return torch.cat([self.arguments.tensor(self.tail(request, x)) for request, x in rows])
        except RuntimeError as error:
            if "numpy() on Tensor that requires grad" not in str(error):
                raise
            raise UserError(
                f"a {self.class_name} decodes its samples to arrays, which no gradient of a reward goes back through; "
                "choose an algorithm that follows none, as flow_grpo or diffusion_nft"
            ) from error

    def encode_pictures(self, pictures: Sequence[np.ndarray], conditioning: Requests) -> Tensor:
        request = conditioning.select([0])
        try:
            arranged = self._arranged.get(self.key(request), lambda: self._arrangement(request))
            return arranged.encoded(self.pipeline.vae, pictures)
        except Unsupported as error:
            who = f"a {type(self.pipeline).__name__} can't learn from finished pictures"
            raise UserError(f"{who}: {error}; learn from its own samples") from error

    def _arrangement(self, request: Requests) -> Arrangement:
        if getattr(self.pipeline, "vae", None) is None:
            raise Unsupported("it has no VAE")
        shape = self.first(request, 0).shape
        return Arrangement.of(lambda x, decode: self.tail(request, x, decode), shape, self.device)
