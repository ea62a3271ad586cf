"""GenEval by Mask2Former of transformers: the exact rules, by another training of the detector than the published."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from statistics import mean
from typing import TYPE_CHECKING, Any, Literal

from burnish.registry import register
from burnish.rewards.base import Score
from burnish.rewards.images.learned import LearnedReward
from burnish.rewards.networks.contrastive import clip_complaint, load_contrastive, of_length_one
from burnish.rewards.networks.inputs import tokenizer_of
from burnish.rewards.networks.loading import Source, awake, batches, network_complaint
from burnish.rewards.networks.mask2former import CLASSES, Box, Found, detect, load_detector
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from burnish.types.prompt import Prompt

CONFIDENCE = 0.3  # of a detection that counts
COUNTING_CONFIDENCE = 0.9  # where the task is counting
MOST_OBJECTS = 16  # of a class, the most confident ones
SHRINK = 0.1  # of the summed sizes of two objects: as far as their centres may move without a relation
RELATED = 0.5  # of the distance of two centres
SETTLED = 1e-3  # pixels: offsets below are none
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
TEMPLATES = ("a photo of a {colour} {name}", "a photo of a {colour}-colored {name}", "a photo of a {colour} object")

# what a prompt is given where rewards are tried out, whatever it says
EXAMPLE = '{"tag": "single_object", "include": [{"class": "sports ball", "count": 1}]}'
BACKGROUND = 0x99  # of all three colours, around an object whose colour is read

Objects = Mapping[str, Sequence[Found]]  # by class, the most confident first
Colours = Callable[[str, int], Sequence[str]]  # of the N most confident objects of a class
ColoursOf = Callable[[Sequence[Found], str], Sequence[str]]  # the colour of each object, given the name of their class


@dataclass(frozen=True)
class Judged:
    """The scores on one picture."""

    correct: bool  # GenEval's: at least as many objects as wanted, and not as many as are excluded
    strict: bool  # Flow-GRPO's: exactly as many
    partial: float  # Flow-GRPO's training reward: the mean over clauses of how well each is met
    why: str = ""  # what was not met


def kept(found: Sequence[Found], task: str) -> dict[str, list[Found]]:
    """The objects that count, by class, the most confident first.

    Nothing suppresses overlapping objects: GenEval's threshold for that is 1, which is off.
    """
    least = COUNTING_CONFIDENCE if task == "counting" else CONFIDENCE
    objects: dict[str, list[Found]] = {}
    for seen in sorted(found, key=lambda seen: -seen.score):
        if seen.score > least:
            objects.setdefault(seen.name, []).append(seen)
    return {name: same[:MOST_OBJECTS] for name, same in objects.items()}


def relations(a: Box, b: Box) -> set[str]:
    """How ``a`` lies to ``b``; two may hold, and none where they are too near.

    The offset of the centres is shortened by a share of the objects' sizes, and compared with the full distance.
    """
    offset = [(a[i] + a[i + 2] - b[i] - b[i + 2]) / 2 for i in (0, 1)]
    sizes = [abs(a[i + 2] - a[i]) + abs(b[i + 2] - b[i]) for i in (0, 1)]
    beyond = [math.copysign(max(abs(one) - SHRINK * size, 0.0), one) for one, size in zip(offset, sizes, strict=True)]
    if all(abs(one) < SETTLED for one in beyond):
        return set()
    x, y = (one / math.hypot(*offset) for one in beyond)
    named = {"left of": -x, "right of": x, "above": -y, "below": y}
    return {name for name, share in named.items() if share > RELATED}


def judge(objects: Objects, wanted: Mapping[str, Any], colours_of: ColoursOf) -> Judged:
    """All scores on a picture.

    Args:
        objects: that count.
        wanted: a record of GenEval: clauses ``include`` and ``exclude``.
        colours_of: reads colours; called where a clause names one.
    """

    @cache
    def colours(name: str, count: int) -> Sequence[str]:
        return colours_of(objects[name][:count], name)

    correct, why = _correct(objects, wanted, colours)
    strict, partial = _partial(objects, wanted, colours)
    return Judged(correct, strict, partial, why)


def _correct(objects: Objects, wanted: Mapping[str, Any], colours_of: Colours) -> tuple[bool, str]:
    """GenEval's score: of every class, the most confident objects are looked at, as many as are wanted."""
    problems: list[str] = []
    matched: list[Sequence[Found]] = []  # what met each clause; nothing where it was not met
    for clause in wanted.get("include", ()):
        name, count = clause["class"], clause["count"]
        found = list(objects.get(name, ()))[:count]
        problem = f"{len(found)} {name}, not {count}" if len(found) < count else ""
        if not problem and "color" in clause:
            there = colours_of(name, len(found)).count(clause["color"])
            problem = f"{there} {clause['color']} {name}, not {count}" if there < count else ""
        if not problem and "position" in clause:
            problem = _misplaced(found, clause, matched)
        matched.append([] if problem else found)
        problems.append(problem)
    for clause in wanted.get("exclude", ()):
        there = len(objects.get(clause["class"], ()))
        if there >= clause["count"]:
            problems.append(f"{there} {clause['class']}, not fewer than {clause['count']}")
    why = "; ".join(filter(None, problems))
    return not why, why


def _misplaced(found: Sequence[Found], clause: Mapping[str, Any], matched: Sequence[Sequence[Found]]) -> str:
    """What is wrong with where objects are; "" if nothing is. All of them must lie so to all of the others."""
    relation, place = clause["position"]
    target = matched[place]
    if target and all(relation in relations(one.box, other.box) for one in found for other in target):
        return ""
    return f"{clause['class']} is not {relation} {target[0].name if target else 'anything'}"


def _partial(objects: Objects, wanted: Mapping[str, Any], colours_of: Colours) -> tuple[bool, float]:
    """Flow-GRPO's score and training reward: all objects of a class are looked at; ``exclude`` is not read.

    A wrong place counts as a clause that failed and one that held, as in the published server.
    """
    strict, shares = True, list[float]()
    matched: list[Sequence[Found]] = []
    for clause in wanted.get("include", ()):
        name, count = clause["class"], clause["count"]
        found = list(objects.get(name, ()))
        right = len(found) == count
        shares.append(1 - abs(count - len(found)) / count)
        if not right:
            shares += [0.0] if "color" in clause or "position" in clause else []
        elif "color" in clause:
            there = colours_of(name, len(found)).count(clause["color"])
            shares.append(1 - abs(count - there) / count)
            right = there == count
        if right and "position" in clause:
            right = not _misplaced(found, clause, matched)
            shares += [1.0] if right else [0.0, 1.0] if matched[clause["position"][1]] else [0.0]
        matched.append(found if right else [])
        strict &= right
    return strict, mean(shares) if shares else 0.0


def problem_of(wanted: Any) -> str:
    """What is wrong with a record that was read from a file; "" if it can be judged."""
    if not isinstance(wanted, Mapping) or not isinstance(wanted.get("include"), list):
        return "it has no list 'include' of clauses"
    clauses = [*wanted["include"], *(wanted.get("exclude") or ())]
    for number, clause in enumerate(clauses):
        if not isinstance(clause, Mapping) or clause.get("class") not in CLASSES:
            return f"clause {number + 1} names no class that the detector knows"
        if type(clause.get("count")) is not int or clause["count"] < 1:
            return f"clause {number + 1} has no 'count' of 1 or more"
        if clause.get("color", "red") not in COLOURS:
            return f"clause {number + 1} has the colour {clause['color']!r}; the colours are {', '.join(COLOURS)}"
        if "position" in clause and not _is_position(clause["position"], number):
            return f"clause {number + 1} has no 'position' such as ['left of', 0], of an earlier clause"
    return "" if clauses else "it has no clause"


def _is_position(position: Any, number: int) -> bool:
    known = ("left of", "right of", "above", "below")
    return (
        isinstance(position, Sequence)
        and len(position) == 2
        and position[0] in known
        and type(position[1]) is int
        and 0 <= position[1] < number
    )


@register("flow reward", "geneval_mask2former")
class GenevalMask2Former(LearnedReward):
    """GenEval's score (Ghosh et al. 2023, arXiv:2310.11513) with a Mask2Former of transformers as the detector.

    The rules are GenEval's; the published numbers are of another training of the same detector, so that these are not
    to be put into one table with them.
    """

    numbers = ("strict", "partial", "objects")

    path: str = "facebook/mask2former-swin-small-coco-instance"
    """Directory, or org/name on the Hugging Face hub, of the detector: a Mask2Former for instances of COCO."""
    clip: str = "openai/clip-vit-large-patch14"
    """Directory, or org/name on the hub, of the CLIP that tells colours; GenEval's is OpenAI's ViT-L/14."""
    clip_revision: str | None = None
    """Branch, tag or commit of that CLIP, if it is one of the hub."""
    value: Literal["correct", "strict", "partial"] = "correct"
    """correct: GenEval's score, 0 or 1; strict: Flow-GRPO's, which wants exactly as many objects; partial:
    Flow-GRPO's training reward, the mean of how well each clause is met. All three are logged."""

    def sources(self) -> tuple[Source, ...]:
        detector = partial(network_complaint, families=("mask2former",))
        return Source(complaint=detector), Source("clip", "clip_revision", complaint=clip_complaint)

    def check(self, prompts: Sequence[Prompt]) -> None:
        super().check(prompts)
        for prompt in prompts:
            if problem := problem_of(record_of(prompt)):
                raise UserError(
                    f"reward {self.name} can't score {prompt.name}: {problem}; give GenEval's records, with tag, "
                    "include and exclude under extra_info, or name these keys in data.extra_keys"
                )

    def load(self) -> Any:
        detector, clip = (self.folder(source) for source in self.sources())
        return (
            load_detector(detector, self.dtype, self.resting),
            load_contrastive(clip, self.dtype, self.resting, (), False),
            tokenizer_of(clip),
        )

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Score]:
        detector, clip, tokenizer = self.load()
        scores = []
        with awake(detector, self.device, self.put_away), awake(clip.network, self.device, self.put_away):
            for image, prompt in zip(images, prompts, strict=True):
                wanted = record_of(prompt)
                if problem := problem_of(wanted):
                    scores.append(Score(None, problem))
                    continue
                objects = kept(detect(detector, image, self.device), str(wanted.get("tag", "")))
                judged = judge(
                    objects, wanted,
                    lambda found, name, image=image: self._colours(clip, tokenizer, image, found, name),  # type: ignore[misc]
                )  # fmt: skip
                values = {"correct": float(judged.correct), "strict": float(judged.strict), "partial": judged.partial}
                numbers = values | {"objects": float(sum(map(len, objects.values())))}
                scores.append(Score(values[self.value], judged.why, {name: numbers[name] for name in self.numbers}))
        return scores

    def _colours(self, clip: Any, tokenizer: Any, image: np.ndarray, found: Sequence[Found], name: str) -> list[str]:
        """The colour of each object: the one whose texts its picture is most like."""
        import torch

        texts = [one.format(colour=colour, name=name) for colour in COLOURS for one in TEMPLATES]
        embedded = clip.texts(texts, tokenizer, self.batch_size).view(len(COLOURS), len(TEMPLATES), -1)
        classes = of_length_one(embedded.mean(1))
        chosen: list[str] = []
        for some in batches(found, self.batch_size):
            crops = [cut_out(image, one) for one in some]
            with torch.no_grad():
                pictures = clip.images(clip.preprocessing.pictures(crops).to(self.device))
            chosen += [COLOURS[i] for i in (pictures @ classes.T).argmax(1).tolist()]
        return chosen


def record_of(prompt: Prompt) -> Any:
    """GenEval's record of a prompt: the keys tag, include and exclude, at the top or under extra_info."""
    info = prompt.info
    inner = info.get("extra_info")
    return inner if isinstance(inner, dict) and "include" in inner else info


def cut_out(image: np.ndarray, one: Found) -> np.ndarray:
    """The picture inside the box of an object, with everything that is not the object grey."""
    import numpy as np

    masked = np.where(one.mask[..., None], image, np.uint8(BACKGROUND))
    left, top, right, bottom = (round(side) for side in one.box)
    return np.ascontiguousarray(masked[top:bottom, left:right])
