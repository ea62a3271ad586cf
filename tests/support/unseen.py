"""A pipeline that no library has: a network of its own, and a loop of its own around it."""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import diffusers
import torch
from diffusers import DDIMScheduler, DiffusionPipeline, FlowMatchEulerDiscreteScheduler, ModelMixin
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.loaders.peft import PeftAdapterMixin
from diffusers.utils import BaseOutput
from PIL import Image
from torch import Tensor, nn


@dataclass
class Added(BaseOutput):
    added: Tensor


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.value = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return (self.query(x) @ x.transpose(1, 2)).softmax(-1) @ self.value(x)


class UnseenPainter(ModelMixin, ConfigMixin, PeftAdapterMixin):
    """Predicts what to add to dots of colour, x_0 - eps, from how clean they are."""

    @register_to_config
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.letters, self.clean = nn.Embedding(64, width), nn.Linear(1, width)
        self.inward, self.attention, self.outward = nn.Linear(3, width), Attention(width), nn.Linear(width, 3)

    def forward(self, letters: Tensor, dots: Tensor, clean: Tensor) -> Any:
        said = self.letters(letters).mean(1) + self.clean(clean[:, None])
        hidden = self.inward(dots) + said[:, None]
        return self.returned(self.outward(hidden + self.attention(hidden)))

    def returned(self, added: Tensor) -> Any:
        return Added(added=added)


class OddPainter(UnseenPainter):
    """Returns what nobody can look into."""

    def returned(self, added: Tensor) -> Any:
        return SimpleNamespace(added=added)


class UnseenPipeline(DiffusionPipeline):
    """Draws squares of dots."""

    def __init__(self, painter: Any, scheduler: Any) -> None:
        super().__init__()
        self.register_modules(painter=painter, scheduler=scheduler)

    def read(self, text: str) -> Tensor:
        return torch.tensor([[ord(letter) % 64 for letter in text or "."]])

    @torch.no_grad()
    def __call__(
        self, prompt: str, num_inference_steps: int = 10, guidance_scale: float = 2.0, side: int = 8,
        generator: Any = None, output_type: str = "pil", return_dict: bool = True,
    ) -> Any:  # fmt: skip
        dots = torch.randn(1, side * side, 3, generator=generator)
        self.scheduler.set_timesteps(num_inference_steps)
        for time in self.times():
            clean = (1 - time / 1000).expand(1)
            added = self.paint(self.read(prompt), dots, clean)
            if guidance_scale > 1:
                plain = self.paint(self.read(""), dots, clean=clean)
                added = plain + guidance_scale * (added - plain)
            dots = self.moved(-added, time, dots)
        images = (dots.view(1, side, side, 3).permute(0, 3, 1, 2) / 4 + 0.5).clamp(0, 1)
        return self.shown(images)

    def times(self) -> Any:
        return self.scheduler.timesteps

    def paint(self, *given: Tensor, **named: Tensor) -> Tensor:
        return self.painter(*given, **named).added

    def shown(self, images: Tensor) -> Any:
        return SimpleNamespace(images=images)

    def moved(self, velocity: Tensor, time: Tensor, dots: Tensor) -> Tensor:
        return self.scheduler.step(velocity, time, dots, return_dict=False)[0]


class ClippingPipeline(UnseenPipeline):
    def moved(self, velocity: Tensor, time: Tensor, dots: Tensor) -> Tensor:
        return super().moved(velocity, time, dots).clamp(-1, 1)


class CombinedPipeline(UnseenPipeline):
    """Has another pipeline draw."""

    def __init__(self, painter: Any, scheduler: Any) -> None:
        super().__init__(painter, scheduler)
        self.__dict__["stage"] = UnseenPipeline(painter, scheduler)


class TwicePipeline(UnseenPipeline):
    def moved(self, velocity: Tensor, time: Tensor, dots: Tensor) -> Tensor:
        once = super().moved(velocity, time, dots)
        self.scheduler._step_index -= 1
        return super().moved(velocity, time, once)


class RowsPipeline(UnseenPipeline):
    """Has its scheduler step halves of a sample as rows."""

    def moved(self, velocity: Tensor, time: Tensor, dots: Tensor) -> Tensor:
        halves = [one.reshape(2, -1, 3) for one in (velocity, dots)]
        return self.scheduler.step(halves[0], time, halves[1], return_dict=False)[0].reshape(dots.shape)


class OwnSchedulerPipeline(UnseenPipeline):
    def moved(self, velocity: Tensor, time: Tensor, dots: Tensor) -> Tensor:
        own = type(self.scheduler).from_config(self.scheduler.config)
        own.set_timesteps(len(self.scheduler.timesteps))
        return own.step(velocity, time, dots, return_dict=False)[0]


class MomentumPipeline(UnseenPipeline):
    """Goes on in the direction of the step before."""

    def moved(self, velocity: Tensor, time: Tensor, dots: Tensor) -> Tensor:
        before = velocity if time == self.scheduler.timesteps[0] else self.before
        self.__dict__["before"] = velocity
        return super().moved(velocity + 0.5 * before, time, dots)


class LatePipeline(UnseenPipeline):
    """Moves twice as far from its sixth step on, which it counts."""

    def moved(self, velocity: Tensor, time: Tensor, dots: Tensor) -> Tensor:
        self.__dict__["done"] = 0 if time == self.scheduler.timesteps[0] else self.done + 1
        return super().moved(velocity * 2 if self.done > 4 else velocity, time, dots)


class BranchingPipeline(UnseenPipeline):
    """Moves twice as far early, by the time that its scheduler, one of whole timesteps, tells it."""

    def moved(self, velocity: Tensor, time: Tensor, dots: Tensor) -> Tensor:
        return super().moved(velocity * 2 if time > 500 else velocity, time, dots)


class AgainPipeline(UnseenPipeline):
    """Sets its scheduler anew for each step."""

    def moved(self, velocity: Tensor, time: Tensor, dots: Tensor) -> Tensor:
        self.scheduler.set_timesteps(len(self.scheduler.timesteps))
        return super().moved(velocity, time, dots)


class FixedPipeline(UnseenPipeline):
    def __call__(self, prompt: str, guidance_scale: float = 2.0, generator: Any = None) -> Any:
        return super().__call__(prompt, 3, guidance_scale, generator=generator)


class PiecesPipeline(UnseenPipeline):
    """Calls layers of its network, and never all of it."""

    def paint(self, letters: Tensor, dots: Tensor, clean: Tensor) -> Tensor:
        return self.painter.outward(self.painter.inward(dots))


class PicturesPipeline(UnseenPipeline):
    """Calls its network by its method, and draws images of PIL, whatever it is asked for."""

    def paint(self, *given: Tensor, **named: Tensor) -> Tensor:
        return self.painter.forward(*given, **named).added

    def shown(self, images: Tensor) -> Any:
        return [Image.fromarray((one * 255).round().byte().permute(1, 2, 0).numpy()) for one in images]


class ArraysPipeline(UnseenPipeline):
    def times(self) -> Any:  # as a list, which no operation on tensors shows
        return map(torch.tensor, self.scheduler.timesteps.tolist())

    def shown(self, images: Tensor) -> Any:
        return {"images": images.permute(0, 2, 3, 1).numpy()}


class SignedPipeline(UnseenPipeline):
    """Leaves its images in [-1, 1] where it is asked for tensors."""

    def shown(self, images: Tensor) -> Any:
        return SimpleNamespace(images=2 * images - 1)


class LayersPipeline(UnseenPipeline):
    """Draws two images for a prompt."""

    def shown(self, images: Tensor) -> Any:
        return SimpleNamespace(images=[torch.cat([images, 1 - images])])


class BrokenPipeline(UnseenPipeline):
    """Asks its network for what it hasn't."""

    def read(self, text: str) -> Tensor:
        return super().read(text) + json.loads("{}")["offset"]


OURS = [one for one in globals().values() if isinstance(one, type) and one.__module__ == __name__]


def add_to_diffusers(monkeypatch: Any) -> None:
    """As if a new version of diffusers had them."""
    for kind in OURS:
        monkeypatch.setattr(kind, "__module__", f"diffusers.unseen.{kind.__name__.lower()}")
        monkeypatch.setattr(diffusers, kind.__name__, kind, raising=False)


def write_unseen(folder: Path, kind: type = UnseenPipeline, painter: type = UnseenPainter) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        whole = kind is BranchingPipeline
        scheduler = DDIMScheduler(clip_sample=False) if whole else FlowMatchEulerDiscreteScheduler(shift=3.0)
        kind(painter=painter(), scheduler=scheduler).save_pretrained(folder)
    return folder
