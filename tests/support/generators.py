"""A generator as a run loads it, and what tests ask of it: the one place of theirs that knows how it is built."""

import inspect
import itertools
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnish.diffusion.options import ModelOptions, RolloutOptions
from burnish.diffusion.pipeline.arguments import IMAGES
from burnish.diffusion.pipeline.loading import load_model
from burnish.models.lora import add_adapters, merged_state
from burnish.models.tiny import describe
from burnish.options.model import LoraOptions
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.utils import random
from burnish.utils.paths import resolve
from tests.support.tiny_run import burnish
from tools.tiny_calls import load as load_alone
from tools.tiny_calls import media


@cache
def folder_of(name: str) -> Path:
    """Of a tiny pipeline, which no test writes to."""
    folder = Path(tempfile.mkdtemp(prefix="burnish-")) / name
    burnish("tiny", name, folder)
    return folder


class Generator:
    """A pipeline (or a tiny one, by name) that is loaded, with a network to train; adapters begin far from nothing."""

    def __init__(
        self, path: Path | str, *, steps: int = 4, guidance: float = 1.0, rollout: dict[str, Any] | None = None,
        lora: dict[str, Any] | None = None, negative: str = "grey", **model: Any,
    ) -> None:  # fmt: skip
        path = resolve(path) if str(path).startswith("burnish:") else path
        self.tiny = describe(path) if isinstance(path, str) else None
        self.path = folder_of(path) if isinstance(path, str) else path
        given: dict[str, Any] = {"batch_size": 96, "num_inference_steps": steps, "guidance_scale": guidance}
        if self.tiny is not None:
            given |= {"height": self.tiny.height, "width": self.tiny.width, "num_frames": self.tiny.num_frames}
            given["call"] = dict(self.tiny.call)
        self.rollout = RolloutOptions(**given | (rollout or {}))
        options = None if lora is None else LoraOptions(**{"rank": 2} | lora)
        model = {"path": str(self.path), "device": "cpu", "lora": options} | model
        self.options = ModelOptions(**model)
        self.model: Any = load_model(self.options, self.rollout)
        self.network, self.guidance, self.steps = self.model.network, guidance, steps
        self.negative = negative
        self.size = {"height": self.rollout.height, "width": self.rollout.width, "steps": steps}
        if options is not None:
            add_adapters(self.network, options, ["policy"], seed=0, default_targets=self.model.lora_targets)
            with torch.no_grad():
                for name, value in self.network.named_parameters():
                    draw = torch.Generator().manual_seed(len(name))
                    if "magnitude" in name:
                        value.mul_(1.5)
                    elif ".lora_" in name:
                        value.copy_(0.3 * torch.randn(value.shape, generator=draw))

    def prompt(self, text: str) -> Prompt:
        """With the images that a tiny pipeline needs."""
        images, others = list[Media](), list[tuple[str, Media]]()
        for name, kind in ({} if self.tiny is None else self.tiny.inputs).items():
            drawn = media(kind, self.tiny, 0)
            shown = [Media.array(np.asarray(one)) for one in (drawn if isinstance(drawn, list) else [drawn])]
            if name in IMAGES:
                images += shown
            else:
                others.append((name, Media.movie(shown) if isinstance(drawn, list) else shown[0]))
        return Prompt(text=text, negative=self.negative, images=tuple(images), inputs=tuple(others))

    def asked(self, *texts: str, check: bool = True) -> Any:
        """What rows of prompts are drawn from, compared with the pipeline's own run."""
        asked = self.model.condition([self.prompt(text) for text in texts], **self.size)
        if check:
            self.verify(asked)
        return asked

    def verify(self, asked: Any, guidance: float | None = None) -> None:
        self.model.verify(asked, guidance=self.guidance if guidance is None else guidance)

    def start(self, asked: Any) -> Tensor:
        return self.model.start(asked, [("row", i) for i in range(len(asked))])

    def times(self, asked: Any) -> Tensor:
        return self.model.schedule(asked)

    def velocity(
        self, asked: Any, x: Tensor, times: Tensor, rows: Sequence[int] | None = None, guidance: float | None = None
    ) -> Tensor:
        """Of rows at their times."""
        at = torch.arange(len(x)) if rows is None else torch.tensor(rows)
        some = asked.select(at)
        unguided = self.guidance if guidance is None else guidance
        return self.model.predict(self.network, x[at], times[at], some, guidance=unguided)

    def draw(self, asked: Any, x: Tensor) -> Tensor:
        """Final states, by Euler's steps along the model's schedule."""
        with torch.no_grad():
            for t, after in itertools.pairwise(self.times(asked)):
                x = x + (after - t) * self.velocity(asked, x, t.expand(len(x)))
        return x

    def images(self, asked: Any, x: Tensor) -> Tensor:
        """Of final states, [B, 3, H, W]."""
        return self.model.decode_tensor(x, asked)

    def alone(self, texts: Sequence[str], x: Tensor, **given: Any) -> Tensor:
        """Images [B, 3, H, W] that diffusers alone draws from the same noise, with an ``adapter`` or a ``path``."""
        pipeline = load_alone(given.get("path", self.path))
        pipeline.scheduler = self.model.pipeline.scheduler
        if "adapter" in given:
            pipeline.load_lora_weights(given["adapter"])
        taken = inspect.signature(pipeline.__call__).parameters
        guided = "true_cfg_scale" if "true_cfg_scale" in taken else "guidance_scale"
        found = []
        for row, text in enumerate(texts):
            call: dict[str, Any] = {"prompt": text, "negative_prompt": self.negative or None, guided: self.guidance}
            call |= {"height": self.rollout.height, "width": self.rollout.width, "num_inference_steps": self.steps}
            call |= self.rollout.call
            call["generator"] = torch.Generator().manual_seed(random.key("row", row))
            call = {name: value for name, value in call.items() if name in taken and value is not None}
            found.append(pipeline(**call, output_type="pt").images)
        return torch.cat(found)

    def merged(self) -> dict[str, Tensor]:
        """All weights, with the adapters in them."""
        return merged_state(self.network, "policy")[0]
