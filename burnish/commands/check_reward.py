"""burnish check-reward: scores made pictures with a reward, and compares with whatever else computes it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.config import load
from burnish.config.hub import with_models
from burnish.registry import fields, known, lookup
from burnish.rewards.base import Reward
from burnish.rewards.images.geneval_rules import EXAMPLE
from burnish.rewards.images.learned import LearnedReward, PromptedReward
from burnish.rewards.originals import PUBLISHED, Original, original_of, usual_range
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.utils import terminal
from burnish.utils.errors import UserError
from burnish.utils.reading import checked_path
from burnish.utils.weights import vocabulary_complaint

if TYPE_CHECKING:
    import numpy as np

KIND = "flow reward"
SIDE = 384
TEXT = "HELLO"
# what is drawn -> the prompt that asks for it; None where no prompt does
ASKED = {
    "circle": "a red circle on a white background", "square": "a blue square on a white background",
    "text": f'a white sign that says "{TEXT}"', "noise": "colourful television noise", "gradient": None, "plain": None,
}  # fmt: skip
ALONE = 1e-3  # of the spread of all scores: how far a score alone may be from the one in a batch, in float32
HALVED = 0.05  # the same, in bfloat16
GRADIENT = 0.03  # how far the score with gradients may be: Pillow rounds to 8 bits twice
ENDINGS = (".png", ".jpg", ".jpeg", ".webp")
MARKS = {"ok": "green", "fail": "bold red", "info": "dim"}


@dataclass(frozen=True)
class Finding:
    """What was looked at, and how it was."""

    what: str
    state: str  # ok, fail, or info where nothing is demanded
    told: str


def check_reward(name: str, options: Sequence[str], *, weights: str | None, pictures: str | None) -> int:
    """Score pictures with a reward; 0 if nothing is wrong with it.

    Args:
        name: of a reward on pictures.
        options: of the reward, OPTION=VALUE.
        weights: directory, file or hub id of its network; None takes the reward's own.
        pictures: folder whose pictures are scored in place of made ones.
    """
    from rich.text import Text

    reward = _reward(name, options, weights)
    shown = _pictures() if pictures is None else _read_pictures(pictures)
    prompts = _prompts(reward, shown)
    reward.check(prompts)
    console = terminal.console(highlight=False, soft_wrap=True)
    started = time.perf_counter()
    reward.prepare()
    console.print(f"Loaded reward {name} in {time.perf_counter() - started:.1f} s.", markup=False)
    images = list(shown.values())
    started = time.perf_counter()
    table = [_scores(reward, images, [prompt] * len(images)) for prompt in prompts]
    took, count = time.perf_counter() - started, len(images) * len(prompts)
    _print_scores(console, table, list(shown), prompts)
    console.print(f"{count} scores in {took:.2f} s: {took / count:.3f} s each, on {_device(reward)}.", markup=False)
    findings = [*_own(reward, table, images, prompts), *_compared(reward, shown, prompts, table)]
    for one in findings:
        console.print(Text.assemble((f"{one.state:<5}", MARKS[one.state]), f"{one.what}: {one.told}"))
    failed = sum(one.state == "fail" for one in findings)
    console.print(f"{failed} of {len(findings)} checks failed." if failed else "Nothing is wrong with it.")
    return 1 if failed else 0


def _reward(name: str, options: Sequence[str], weights: str | None) -> Reward:
    """The reward with its options; what it loads of the hub is downloaded.

    Raises:
        UserError: there is no such reward, or an option is wrong.
    """
    given = list(options)
    if weights is not None:
        given.append(f"path={weights}")
        place = Path(weights)
        beside = place if place.is_dir() else place.parent
        named = [option.partition("=")[0] for option in options]
        if known(KIND, name) and "tokenizer" in fields(lookup(KIND, name)) and "tokenizer" not in named:
            given += ["tokenizer=null"] if place.exists() and not vocabulary_complaint(beside) else []
    # a recipe with this reward alone, so that options are checked, and networks fetched, as in a run
    alone = [f"rewards.{label}=null" for label in load("quickstart").rewards if label != name]
    config = load("quickstart", [*alone, f"rewards.{name}.weight=1", *(f"rewards.{name}.{one}" for one in given)])
    reward = with_models(config).rewards[name]
    if not isinstance(reward, Reward) or "image" not in reward.reads:
        raise UserError(f"{name} does not score pictures, which is what check-reward makes; try another reward")
    return reward


def _pictures() -> dict[str, np.ndarray]:
    """Made ones, by what they show: uint8 [H, W, 3]; that with text is wider than high."""
    import matplotlib
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"), SIDE // 3)
    shapes = {name: Image.new("RGB", (SIDE, SIDE), "white") for name in ("circle", "square")}
    box = (SIDE // 4, SIDE // 4, 3 * SIDE // 4, 3 * SIDE // 4)
    ImageDraw.Draw(shapes["circle"]).ellipse(box, fill="red")
    ImageDraw.Draw(shapes["square"]).rectangle(box, fill="blue")
    shapes["text"] = Image.new("RGB", (2 * SIDE, SIDE), "white")
    ImageDraw.Draw(shapes["text"]).text((SIDE, SIDE // 2), TEXT, fill="black", font=font, anchor="mm")
    found = {name: np.asarray(one).copy() for name, one in shapes.items()}
    ramp = np.broadcast_to(np.linspace(0, 255, SIDE)[:, None], (SIDE, SIDE))
    found["noise"] = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    found["gradient"] = np.stack([ramp, ramp.T, 255 - ramp], 2).astype(np.uint8)
    found["plain"] = np.full((SIDE, SIDE, 3), 128, np.uint8)
    return found


def _read_pictures(folder: str) -> dict[str, np.ndarray]:
    """Those of a folder, by the names of their files.

    Raises:
        UserError: there are none, or one can't be read.
    """
    import numpy as np

    place = checked_path(folder, "--pictures")
    files = sorted(one for one in place.glob("*") if one.suffix.lower() in ENDINGS)
    if not files:
        raise UserError(f"--pictures is {folder}, which is no folder with pictures ({', '.join(ENDINGS)})")
    try:
        return {file.name: np.asarray(Media.file(file).image()).copy() for file in files}
    except OSError as error:
        raise UserError(f"a picture of {folder} can't be read: {error}") from None


def _prompts(reward: Reward, shown: dict[str, np.ndarray]) -> list[Prompt]:
    """What pictures are scored for: made ones for what they show, a folder's for what a card asks, if one does.

    A prompt shows the first picture, for rewards that compare with one.
    """
    first = (Media.array(next(iter(shown.values()))),)
    texts = [text for name in shown if (text := ASKED.get(name)) is not None]
    if not texts:
        card = PUBLISHED.get(reward.name)
        texts = [card.prompt if card is not None else "a photo", "something else"]
    return [Prompt(text=text, answer=TEXT, images=first, extra=EXAMPLE) for text in texts]


def _scores(reward: Reward, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[float]:
    """NaN where a value is missing."""
    return [math.nan if one.value is None else one.value for one in reward.verdicts(list(images), list(prompts))]


def _print_scores(console: Any, table: list[list[float]], names: list[str], prompts: Sequence[Prompt]) -> None:
    from rich.table import Table
    from rich.text import Text

    shown = Table("prompt", *names, box=None, pad_edge=False)
    for prompt, row in zip(prompts, table, strict=True):
        shown.add_row(Text(prompt.text), *(f"{value:.4f}" for value in row))
    console.print(shown)


def _own(
    reward: Reward, table: list[list[float]], images: Sequence[np.ndarray], prompts: Sequence[Prompt]
) -> Iterator[Finding]:
    """What can be seen from the scores themselves."""
    values = [value for row in table for value in row]
    finite = all(map(math.isfinite, values))
    yield Finding(
        "values", "ok" if finite else "fail", "all are finite" if finite else "some are missing or not finite"
    )
    if not finite:
        return
    spread = max(values) - min(values)
    pictures = min(max(row) - min(row) for row in table)
    yield Finding("pictures", "ok" if pictures > 0 else "fail", f"change it by {pictures:.3g} or more for a prompt")
    if isinstance(reward, PromptedReward):
        texts = max(max(column) - min(column) for column in zip(*table, strict=True))
        yield Finding("prompts", "ok" if texts > 0 else "fail", f"change it by up to {texts:.3g} for a picture")
        yield _ranks(table, prompts, len(images))
    if reward.compares() != "samples":
        yield Finding("batches", "info", f"not looked at: it compares {reward.compares()}, and none is alone")
        return
    alone = max(
        abs(_scores(reward, [one], prompts[:1])[0] - value) for one, value in zip(images, table[0], strict=True)
    )
    limit = (ALONE if _dtype(reward) == "float32" else HALVED) * spread + 1e-6
    yield Finding(
        "batches", "ok" if alone <= limit else "fail", f"a picture alone has a score that differs by {alone:.2g}"
    )
    if reward.has_gradients():
        yield _gradients(reward, images, prompts[0], table[0], spread)


def _ranks(table: list[list[float]], prompts: Sequence[Prompt], pictures: int) -> Finding:
    """How often the picture that shows a prompt is the one that scores highest."""
    own = sum(max(range(pictures), key=row.__getitem__) == i for i, row in enumerate(table))
    told = f"{own} of {len(prompts)} score the picture made for them highest; random weights do so by chance"
    return Finding("prompts", "info", told if prompts[0].text in ASKED.values() else "of your pictures none is its own")


def _gradients(
    reward: Reward, images: Sequence[np.ndarray], prompt: Prompt, values: Sequence[float], spread: float
) -> Finding:
    import torch

    off, slope = 0.0, 0.0
    for image, value in zip(images, values, strict=True):
        picture = (torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255).requires_grad_()
        found = reward.differentiable(picture, [prompt])
        found.sum().backward()
        assert picture.grad is not None
        off, slope = max(off, abs(found.item() - value)), max(slope, picture.grad.norm().item())
    limit = (GRADIENT if _dtype(reward) == "float32" else HALVED) * spread
    right = off <= limit and math.isfinite(slope) and slope > 0
    return Finding(
        "gradients",
        "ok" if right else "fail",
        f"the score with gradients differs by {off:.2g}; their norm is {slope:.3g}",
    )


def _compared(
    reward: Reward, shown: dict[str, np.ndarray], prompts: Sequence[Prompt], table: list[list[float]]
) -> Iterator[Finding]:
    """With the original's code and numbers; says of each what could not be compared, and why."""
    values = [value for row in table for value in row]
    original = original_of(reward)
    if original is None:
        yield Finding("original", "info", f"not compared: no other code is known for {reward.name}")
    elif not original.is_installed:
        yield Finding(
            "original", "info",
            f"not compared: {original.what} is not installed (pip install {original.install}, better in an environment "
            "of its own)",
        )  # fmt: skip
    else:
        yield _against(original, reward, shown, prompts, values)
    card = PUBLISHED.get(reward.name)
    if card is None:
        yield Finding("numbers", "info", f"not compared: of {reward.name} no numbers are published for pictures")
    elif not set(card.values) <= shown.keys():
        yield Finding(
            "numbers", "info",
            f"not compared: {card.where} has them for {', '.join(card.values)}; give their folder as --pictures",
        )  # fmt: skip
    else:
        own = dict(zip(shown, _scores(reward, list(shown.values()), [prompts[0]] * len(shown)), strict=True))
        off = max(abs(own[name] - value) for name, value in card.values.items())
        yield Finding("numbers", "ok" if off <= card.tolerance else "fail", f"{card.where}: they differ by {off:.2g}")
    if isinstance(reward, LearnedReward) and (usual := usual_range(reward)) is not None:
        inside = sum(usual[0] <= value <= usual[1] for value in values)
        told = f"{inside} of {len(values)} lie in {usual[0]:g} to {usual[1]:g}, where published weights mostly score"
        yield Finding("range", "info", told)


def _against(
    original: Original, reward: Reward, shown: dict[str, np.ndarray], prompts: Sequence[Prompt], values: list[float]
) -> Finding:
    images = list(shown.values())
    try:
        theirs = [value for prompt in prompts for value in original.score(reward, images, [prompt.text] * len(images))]
    except ImportError as error:  # old packages take an old transformers
        return Finding("original", "info", f"not compared: {original.what} can't be imported here: {error}")
    off = max(abs(one - other) for one, other in zip(values, theirs, strict=True))
    limit = (original.tolerance if _dtype(reward) == "float32" else HALVED) * (max(theirs) - min(theirs)) + 1e-6
    return Finding("original", "ok" if off <= limit else "fail", f"{original.what}: differs by {off:.2g} at most")


def _dtype(reward: Reward) -> str:
    return reward.dtype if isinstance(reward, LearnedReward) else "float32"


def _device(reward: Reward) -> str:
    return f"{reward.device} in {reward.dtype}" if isinstance(reward, LearnedReward) else "the CPU"
