"""HPSv3 (Ma et al. 2025, arXiv:2508.03789): human preference, by Qwen2-VL-7B with a head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from burnish.registry import register
from burnish.rewards.base import Verdict
from burnish.rewards.headed.base import BASE_FILES, FRAME, HeadedReward, outputs, verdict
from burnish.rewards.headed.checkpoint import Headed
from burnish.rewards.headed.reading import Question
from burnish.rewards.images.learned import CONFIG, Source, batches

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from burnish.types.prompt import Prompt

FILE = "HPSv3.safetensors"


@register("flow reward", "hpsv3")
class HPSv3(HeadedReward):
    """HPSv3: what people prefer, as the mean of a normal distribution, about 0 to 15; its std is logged."""

    path: str = "MizzenAI/HPSv3"
    """Directory or file, or org/name on the Hugging Face hub, of the weights: HPSv3.safetensors."""
    template: str
    """Text file with the instruction of the checkpoint's own repository, with {prompt} and <|Reward|> where it has
    them; copies of it differ in line breaks, which change the score."""

    @property
    def templates(self) -> tuple[tuple[str, str], ...]:
        return (("template", self.template),)

    def sources(self) -> tuple[Source, ...]:
        return Source(index=FILE, files=(FILE,)), Source("base", "base_revision", CONFIG, BASE_FILES)

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Verdict]:
        (template,) = self.questions()

        def question(loaded: Headed, row: int) -> Question:
            shown = [loaded.reader.geometry.picture(images[row], FRAME)]
            return loaded.reader.question(template, prompts[row].text, shown)

        found = self.read(len(images), question)
        return [verdict(float(values[0, 0]), uncertainty=float(values[0, 1])) for values in found]

    def differentiable(self, pictures: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        import torch

        (template,) = self.questions()
        loaded = self.load()
        found = []
        for rows in batches(range(len(pictures)), self.batch_size):
            shown = [loaded.reader.geometry.tensor(pictures[row].to(self.device), FRAME) for row in rows]
            some = [
                loaded.reader.question(template, prompts[row].text, [one]) for row, one in zip(rows, shown, strict=True)
            ]
            found.append(outputs(loaded, some)[:, 0, 0])
        return torch.cat(found).to(pictures.device)
