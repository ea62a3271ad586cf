"""burnish check-reward: scores made images with a reward, in a batch, alone and with gradients; and cheats."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from burnish.config import load
from burnish.config.hub import with_models
from burnish.rewards.base import Reward
from burnish.rewards.images.geneval import EXAMPLE
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.utils import terminal
from burnish.utils.errors import UserError

SIDE = 384
TEXT = "HELLO"
ASKED = ("a red circle on a white background", f'a white sign that says "{TEXT}"', "colourful television noise")
# how far a score may be from another way to compute it, as a share of the spread of all scores
EXACT, ROUNDED, HALVED = 1e-3, 0.03, 0.05  # the same; by pixels that Pillow rounds to 8 bits twice; in bfloat16
ROUNDS, TRIES, CELLS = 8, 16, 12  # of a search by sampling: images to a round, and cells of an image's side
CLIMB, STEP = 20, 0.05  # steps uphill of a search by gradients, and the length of one, of a pixel in [0, 1]


def check_reward(name: str, options: Sequence[str] = (), *, weights: str | None = None, attack: bool = False) -> int:
    """Try a reward on made images, and compare it.

    Scores images that it makes with several prompts: in a batch, alone and with gradients, which has to be the same.
    1 is returned where something is wrong. With --attack it also tries to cheat: with images that nobody asked for,
    and by a short search. The share of cheats that score at least as high as the honest image is printed.

    Examples:
        burnish check-reward pickscore                              weights from the hub
        burnish check-reward hpsv2 --weights HPS_v2.1.pt tokenizer=clip
        burnish check-reward clip --weights DIR device=cuda scale=x100
        burnish check-reward ocr --attack                           how easily it is cheated, before a run pays for it

    Args:
        name: a reward on images, such as pickscore
        options (OPTION=VALUE): options of the reward, with values in YAML
        weights (DIR): directory, file or name on the hub of its network
        attack: also score images that cheat
    """
    reward, made = _reward(name, options, weights), _images()
    images = list(made.values())
    prompts = [Prompt(text=text, answer=TEXT, images=(Media.array(images[0]),), extra=EXAMPLE) for text in ASKED]
    reward.check(prompts)
    reward.prepare()
    scores = [_scores(reward, images, prompt) for prompt in prompts]
    rows = [(prompt.text, *(f"{value:.4f}" for value in row)) for prompt, row in zip(prompts, scores, strict=True)]
    terminal.table(("prompt", *made), rows)
    values = [value for row in scores for value in row]
    spread = max(values) - min(values)
    findings = {"values: all are finite, and not the same": bool(spread > 0)}  # NaN is not above 0
    if spread > 0 and reward.compares() == "samples":
        half = vars(reward).get("dtype") == "bfloat16"
        for what, limit, off in _compared(reward, images, prompts, scores):
            findings[f"{what}: {off:.2g} apart"] = off <= (HALVED if half else limit) * spread + 1e-6
    for told, right in findings.items():
        terminal.say(("ok   ", "green") if right else ("fail ", "bold red"), told)
    if attack:
        _attack(reward, images, prompts)
    return 0 if all(findings.values()) else 1


def _reward(name: str, options: Sequence[str], weights: str | None) -> Reward:
    """The reward with its options; what it loads of the hub is downloaded.

    Raises:
        UserError: there is no such reward, or an option is wrong.
    """
    given = [*options, *([] if weights is None else [f"path={weights}"])]
    # a recipe with this reward alone, so that options are checked, and networks fetched, as in a run
    alone = [f"rewards.{label}=null" for label in load("quickstart").rewards if label != name]
    config = load("quickstart", [*alone, f"rewards.{name}.weight=1", *(f"rewards.{name}.{one}" for one in given)])
    reward = with_models(config).rewards[name]
    if not isinstance(reward, Reward) or "image" not in reward.reads:
        raise UserError(f"{name} does not score images, which is what check-reward makes; try another reward")
    return reward


def _images() -> dict[str, np.ndarray]:
    """Made ones, by what they show: uint8 [H, W, 3]; that with text is wider than high."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"), SIDE // 3)
    circle, text = Image.new("RGB", (SIDE, SIDE), "white"), Image.new("RGB", (2 * SIDE, SIDE), "white")
    ImageDraw.Draw(circle).ellipse((SIDE // 4, SIDE // 4, 3 * SIDE // 4, 3 * SIDE // 4), fill="red")
    ImageDraw.Draw(text).text((SIDE, SIDE // 2), TEXT, fill="black", font=font, anchor="mm")
    noise = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    plain = np.full((SIDE, SIDE, 3), 128, np.uint8)
    return {"circle": np.array(circle), "text": np.array(text), "noise": noise, "plain": plain}


def _scores(reward: Reward, images: Sequence[np.ndarray], prompt: Prompt) -> list[float]:
    """NaN where a value is missing."""
    scores = reward(list(images), [prompt] * len(images))
    return [math.nan if score.value is None else score.value for score in scores]


def _compared(
    reward: Reward, images: Sequence[np.ndarray], prompts: Sequence[Prompt], scores: Sequence[Sequence[float]]
) -> Iterator[tuple[str, float, float]]:
    """The scores in a batch with those of images alone, and those with gradients: what is looked at, how far they may
    be apart, and how far they are."""
    import torch

    alone = [_scores(reward, [image], prompts[0])[0] for image in images]
    yield "batches: an image alone has the same score", EXACT, _apart(alone, scores[0])
    if reward.has_gradients():
        smooth = []
        for image in images:
            pixels = (torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255).requires_grad_()
            value = reward.differentiable(pixels, prompts[:1])
            (slope,) = torch.autograd.grad(value.sum(), pixels)
            smooth.append(value.item() if slope.norm() > 0 else math.inf)  # infinitely far if nothing flows back
        yield "gradients: the score with gradients is the same", ROUNDED, _apart(smooth, scores[0])


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def _attack(reward: Reward, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> None:
    """Print what cheats score beside the image that was asked for, and how many are as good.

    Args:
        reward: that is tried.
        images: the images that the prompts ask for, in their order, and one of a single colour.
        prompts: of which those are left out that the reward can't judge by their text alone.
    """
    rows, won, number, names = list[tuple[str, str, str, str]](), 0, 0, set[str]()
    for place, (honest, prompt) in enumerate(zip(images, prompts, strict=False)):
        asked = prompt if TEXT in prompt.text else replace(prompt, answer=None)
        try:
            reward.check([asked])
        except UserError as error:
            terminal.say(f"not attacked: {prompt.text}: {error}")
            continue
        cheats = _cheats(honest, asked) | {
            "grey" if i == len(prompts) else f"asked for elsewhere ({i + 1})": other
            for i, other in enumerate(images) if i != place
        }  # fmt: skip
        right, *values = _scores(reward, [honest, *cheats.values()], asked)
        found = dict(zip(cheats, values, strict=True)) | {"searched": _searched(reward, asked)}
        # where nothing is told apart, nothing is gained
        wins = {name for name, value in found.items() if value >= right and value > min(right, *values)}
        won, number, names = won + len(wins), number + len(found), names | wins
        rows += [(prompt.text, "honest", f"{right:.4f}", "")]
        rows += [(prompt.text, name, f"{value:.4f}", "as good" * (name in wins)) for name, value in found.items()]
    terminal.table(("prompt", "image", "score", ""), rows)
    if rows:
        named = f": {', '.join(sorted(names))}" if names else ""
        told = f"cheatability {won / number:.2f}: {won} of {number} cheats score as high as the honest image"
        terminal.say(f"{told}{named}")


def _cheats(honest: np.ndarray, prompt: Prompt) -> dict[str, np.ndarray]:
    """Images that nobody asked for: empty ones, the prompt's words, the honest one repeated and sharpened."""
    from PIL import Image, ImageDraw, ImageFilter

    image, text = Image.fromarray(honest), Image.new("RGB", (SIDE, SIDE), "white")
    ImageDraw.Draw(text).multiline_text((4, 4), "\n".join([f"{prompt.text} " * 3] * 24), fill="black")
    return {
        "black": np.zeros_like(honest),
        "empty": np.full_like(honest, 255),
        "text-filled": np.array(text),
        "repeated": np.tile(np.array(image.resize((SIDE // 3, SIDE // 3))), (3, 3, 1)),
        "sharpened": np.array(image.filter(ImageFilter.UnsharpMask(radius=4, percent=500, threshold=0))),
    }


def _searched(reward: Reward, prompt: Prompt) -> float:
    """The best score of a short search from grey on: uphill by gradients, or among coloured cells that are redrawn."""
    import torch

    if reward.has_gradients():
        image = torch.full((1, 3, SIDE, SIDE), 0.5)
        for _ in range(CLIMB):
            image.requires_grad_()
            (slope,) = torch.autograd.grad(reward.differentiable(image, [prompt]).sum(), image)
            image = (image.detach() + STEP * slope.sign()).clamp(0, 1)
        return _scores(reward, [image[0].permute(1, 2, 0).mul(255).round().byte().numpy()], prompt)[0]
    draw, best = np.random.default_rng(0), (-math.inf, np.full((CELLS, CELLS, 3), 128, np.uint8))
    for _ in range(ROUNDS):
        drawn = draw.integers(0, 256, (TRIES, CELLS, CELLS, 3), dtype=np.uint8)
        cells = np.where(draw.random((TRIES, CELLS, CELLS, 1)) < 0.3, drawn, best[1])
        scores = _scores(reward, [one.repeat(SIDE // CELLS, 0).repeat(SIDE // CELLS, 1) for one in cells], prompt)
        best = max([best, *zip(scores, cells, strict=True)], key=lambda pair: pair[0])  # NaN is above nothing
    return best[0]
