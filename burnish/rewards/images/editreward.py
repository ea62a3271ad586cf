"""EditReward (Wu et al. 2025, arXiv:2509.26346): how well an edit was made, by Qwen2.5-VL with two heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from burnish.registry import register
from burnish.rewards.base import Verdict
from burnish.rewards.headed.base import FRAME, HeadedReward, verdict
from burnish.rewards.headed.checkpoint import Headed
from burnish.rewards.headed.reading import Question
from burnish.types.prompt import kinds_of
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from burnish.types.prompt import Prompt


@register("flow reward", "editreward")
class EditReward(HeadedReward):
    """EditReward: whether the instruction was followed, and how good the picture is; one question for each."""

    family: ClassVar[str] = "qwen2_5_vl"
    heads: ClassVar[tuple[str, ...]] = ("rm_heads.head_0.", "rm_heads.head_1.")

    path: str
    """Directory or file of the weights."""
    base: str = "Qwen/Qwen2.5-VL-7B-Instruct"
    """Directory, or org/name on the hub, of the model that it was trained on: its configuration and tokenizer; and its
    weights, where the checkpoint has an adapter."""
    template: tuple[str, str]
    """Text files with the two questions of the checkpoint's own repository, that of head_0 first, each with {prompt}
    and <|Reward|> where it has them."""
    pool: Literal["mean", "min", "sum"] = "mean"
    """How the means of the two heads become one value."""

    @property
    def templates(self) -> tuple[tuple[str, str], ...]:
        return tuple((f"template[{i}]", file) for i, file in enumerate(self.template))

    def check(self, prompts: Sequence[Prompt]) -> None:
        super().check(prompts)
        for prompt in kinds_of(prompts):
            if not prompt.images:
                raise UserError(f"reward editreward compares an edit with its source, and {prompt.name} has no picture")

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Verdict]:
        import numpy as np

        by_head = []
        for head, template in enumerate(self.questions()):

            def question(loaded: Headed, row: int, template: str = template) -> Question:
                sources = [np.asarray(media.image()) for media in prompts[row].images]
                shown = [loaded.reader.geometry.picture(one, FRAME) for one in (*sources, images[row])]
                return loaded.reader.question(template, prompts[row].text, shown)

            by_head.append([values[0].tolist() for values in self.read(len(images), question, head)])
        return [self._pooled(first, second) for first, second in zip(*by_head, strict=True)]

    def _pooled(self, first: Sequence[float], second: Sequence[float]) -> Verdict:
        means = first[0], second[0]
        value = min(means) if self.pool == "min" else sum(means) / (2 if self.pool == "mean" else 1)
        return verdict(value, head_0=means[0], head_1=means[1], uncertainty=(first[1] + second[1]) / 2)
