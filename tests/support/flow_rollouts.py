"""Prompts, and a reward that is dull or missing for some of them."""

from burnish.registry import options
from burnish.rewards.base import Reward, Verdict
from burnish.types.rollout import Prompt

PROMPTS = [Prompt(text=text) for text in ("one", "two", "three", "four", "five", "six")]


@options
class Brightness(Reward):
    """Mean brightness; equal for all pictures of some prompts, missing for others."""

    dull: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    def score(self, images, prompts):
        return [
            Verdict(None, (), "lost")
            if p.text in self.lost
            else Verdict(0.5 if p.text in self.dull else float(i.mean()))
            for i, p in zip(images, prompts, strict=True)
        ]
