"""GenEval by Mask2Former of transformers: the exact rules, by another training of the detector than the published.

Its outputs are read as mmdet reads them: the post-processing of transformers makes masks of 384 x 384 pixels binary and
enlarges them, which moves boxes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from burnish.registry import register
from burnish.rewards.base import Score
from burnish.rewards.images.learned import LearnedReward
from burnish.rewards.networks.contrastive import clip_complaint, load_contrastive, of_length_one
from burnish.rewards.networks.inputs import IMAGENET_MEAN, IMAGENET_STD, tokenizer_of
from burnish.rewards.networks.loading import Source, awake, batches, frozen, network_complaint
from burnish.utils.errors import UserError
from burnish.utils.weights import load_network

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from burnish.types.prompt import Prompt

# by index of the detector's classes; GenEval calls three otherwise than COCO: mouse, remote and keyboard
CLASSES = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow",
    "elephant", "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee",
    "skis", "snowboard", "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard",
    "tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple",
    "sandwich", "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch",
    "potted plant", "bed", "dining table", "toilet", "tv", "laptop", "computer mouse", "tv remote",
    "computer keyboard", "cell phone", "microwave", "oven", "toaster", "sink", "refrigerator", "book", "clock",
    "vase", "scissors", "teddy bear", "hair drier", "toothbrush",
)  # fmt: skip
SHORTEST, LONGEST, MULTIPLE = 800, 1333, 32  # pixels of the detector's input

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels


@dataclass(frozen=True)
class Found:
    """A detected object."""

    name: str
    score: float
    box: Box
    mask: Any = None  # bool [H, W], which the colour is read from


@cache
def load_detector(folder: Path, dtype: str, device: str) -> Any:
    """The network of a folder, loaded once.

    Raises:
        UserError: it can't be loaded.
    """
    import torch
    from transformers import Mask2FormerForUniversalSegmentation

    network = load_network(Mask2FormerForUniversalSegmentation, folder, dtype=getattr(torch, dtype))
    if network.config.num_labels != len(CLASSES):
        raise UserError(
            f"{folder} knows {network.config.num_labels} classes, not COCO's {len(CLASSES)}; give a detector that was "
            "trained on its instances"
        )
    return frozen(network, folder, device)


def detect(network: Any, image: np.ndarray, device: str) -> list[Found]:
    """The objects of one image, uint8 [H, W, 3]."""
    import torch

    pixels, size = preprocessed(image)
    with torch.no_grad():
        out = network(pixel_values=pixels.to(device, network.dtype))
    classes, masks = (logits[0].float() for logits in (out.class_queries_logits, out.masks_queries_logits))
    return read_detections(classes, masks, tuple(pixels.shape[-2:]), size, image.shape[:2])


def preprocessed(image: np.ndarray) -> tuple[Tensor, tuple[int, int]]:
    """An image as the detector reads it, [1, 3, H, W], and the height and width of the image in it.

    Enlarged or made smaller without antialiasing and rounded to whole levels, as mmdet does it; the padding is 0 after
    normalising.
    """
    import torch
    import torch.nn.functional as F

    height, width = image.shape[:2]
    scale = min(LONGEST / max(height, width), SHORTEST / min(height, width))
    size = int(height * scale + 0.5), int(width * scale + 0.5)
    x = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float()
    x = F.interpolate(x, size, mode="bilinear", align_corners=False).round().clamp(0, 255) / 255
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    high, wide = (-side % MULTIPLE for side in size)
    return F.pad((x - mean) / std, (0, wide, 0, high)), size


def read_detections(
    classes: Tensor, masks: Tensor, padded: Sequence[int], size: Sequence[int], original: Sequence[int]
) -> list[Found]:
    """The objects that a network's outputs show, by mmdet's rule, the most confident ones first.

    Args:
        classes: logits [Q, C + 1]; the last class is none.
        masks: logits [Q, h, w].
        padded: height and width of the network's input.
        size: of the image in it, at the top left.
        original: of the image as it was.
    """
    import torch.nn.functional as F

    share = classes.softmax(-1)[:, :-1]
    scores, places = share.flatten().topk(min(100, share.numel()))
    kept = scores > 0.05  # far below what any rule reads; a mask only makes a score smaller
    scores, places = scores[kept], places[kept]
    logits = masks[places // share.shape[1]]
    logits = F.interpolate(logits[None], tuple(padded), mode="bilinear", align_corners=False)
    logits = F.interpolate(logits[..., : size[0], : size[1]], tuple(original), mode="bilinear", align_corners=False)[0]
    inside = logits > 0
    scores = scores * (logits.sigmoid() * inside).flatten(1).sum(1) / (inside.flatten(1).sum(1) + 1e-6)
    order = scores.argsort(descending=True, stable=True)
    return [
        Found(CLASSES[label], score, box, mask)
        for score, label, box, mask in zip(
            scores[order].tolist(), (places % share.shape[1])[order].tolist(), extents(inside[order]),
            inside[order].cpu().numpy(), strict=True,
        )
    ]  # fmt: skip


def extents(masks: Tensor) -> list[Box]:
    """Boxes around masks [N, H, W]: left, top, and one pixel beyond right and bottom; zeros of an empty one."""
    boxes: list[Box] = []
    for mask in masks:
        down, across = (mask.any(axis).nonzero().flatten().tolist() or [0, -1] for axis in (1, 0))
        boxes.append((across[0], down[0], across[-1] + 1, down[-1] + 1))
    return boxes


COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
POSITIONS = ("left of", "right of", "above", "below")
TEMPLATES = ("a photo of a {colour} {name}", "a photo of a {colour}-colored {name}", "a photo of a {colour} object")

# what a prompt is given where rewards are tried out, whatever it says
EXAMPLE = '{"tag": "single_object", "include": [{"class": "sports ball", "count": 1}]}'

Objects = Mapping[str, Sequence[Found]]  # by class, the most confident first
Colours = Callable[[str, int], Sequence[str]]  # of the N most confident objects of a class


def kept(found: Sequence[Found], task: str) -> dict[str, list[Found]]:
    """The objects that count, by class, the most confident first, at most 16 of each.

    Nothing suppresses overlapping objects: GenEval's threshold for that is 1, which is off.
    """
    least = 0.9 if task == "counting" else 0.3
    objects: dict[str, list[Found]] = {}
    for seen in sorted(found, key=lambda seen: -seen.score):
        if seen.score > least:
            objects.setdefault(seen.name, []).append(seen)
    return {name: same[:16] for name, same in objects.items()}


def relations(a: Box, b: Box) -> set[str]:
    """How ``a`` lies to ``b``; two may hold, and none where they are too near.

    The offset of the centres is shortened by a tenth of the objects' sizes; what is left of it has to be more than half
    of their distance. Below a thousandth of a pixel nothing is left.
    """
    offset = [(a[i] + a[i + 2] - b[i] - b[i + 2]) / 2 for i in (0, 1)]
    sizes = [abs(a[i + 2] - a[i]) + abs(b[i + 2] - b[i]) for i in (0, 1)]
    beyond = [math.copysign(max(abs(one) - 0.1 * size, 0.0), one) for one, size in zip(offset, sizes, strict=True)]
    if all(abs(one) < 1e-3 for one in beyond):
        return set()
    x, y = (one / math.hypot(*offset) for one in beyond)
    named = {"left of": -x, "right of": x, "above": -y, "below": y}
    return {name for name, share in named.items() if share > 0.5}


def judge(
    objects: Objects, wanted: Mapping[str, Any], colours_of: Callable[[Sequence[Found], str], Sequence[str]]
) -> tuple[dict[str, float], str]:
    """The scores on an image, and what was not met.

    They are ``correct``, GenEval's: at least as many objects as wanted, and not as many as are excluded; and
    Flow-GRPO's: ``strict``, exactly as many, and ``partial``, which it trains with: how well each clause is met.

    Args:
        objects: that count.
        wanted: a record of GenEval: clauses ``include`` and ``exclude``.
        colours_of: the colour of each object, given the name of their class; called where a clause names a colour.
    """

    @cache
    def colours(name: str, count: int) -> Sequence[str]:
        return colours_of(objects[name][:count], name)

    correct, why = _correct(objects, wanted, colours)
    strict, partial = _partial(objects, wanted, colours)
    return {"correct": float(correct), "strict": float(strict), "partial": partial}, why


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
        earlier = [[relation, place] for relation in POSITIONS for place in range(number)]
        if "position" in clause and clause["position"] not in earlier:
            return f"clause {number + 1} has no 'position' such as ['left of', 0], of an earlier clause"
    return "" if clauses else "it has no clause"


@register("flow reward", "geneval_mask2former")
class GenevalMask2Former(LearnedReward):
    """GenEval's score (Ghosh et al. 2023, arXiv:2310.11513) with a Mask2Former of transformers as the detector.

    The rules are GenEval's; the published numbers are of another training of the same detector, so that these are not
    to be put into one table with them.
    """

    numbers = ("strict", "partial", "objects")
    reads_prompts: ClassVar[bool] = True

    path: str = "facebook/mask2former-swin-small-coco-instance"
    """Directory, or org/name on the Hugging Face hub, of the detector: a Mask2Former for instances of COCO."""
    clip: str = "openai/clip-vit-large-patch14"
    """Directory, or org/name on the hub, of the CLIP that tells colours; GenEval's is OpenAI's ViT-L/14."""
    value: Literal["correct", "strict", "partial"] = "correct"
    """correct: GenEval's score, 0 or 1; strict: Flow-GRPO's, which wants exactly as many objects; partial:
    Flow-GRPO's training reward, the mean of how well each clause is met. All three are logged."""

    def sources(self) -> tuple[Source, ...]:
        detector = partial(network_complaint, families=("mask2former",))
        return Source(complaint=detector), Source("clip", complaint=clip_complaint)

    def unfit(self, prompt: Prompt) -> str:
        problem = problem_of(record_of(prompt))
        ways = "with tag, include and exclude under extra_info, or name these keys in data.extra_keys"
        return problem and f"{problem}; give GenEval's records, {ways}"

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
                objects = kept(detect(detector, image, self.device), str(wanted.get("tag", "")))
                values, why = judge(objects, wanted, partial(self._colours, clip, tokenizer, image))
                numbers = values | {"objects": float(sum(map(len, objects.values())))}
                scores.append(Score(values[self.value], why, {name: numbers[name] for name in self.numbers}))
        return scores

    def _colours(self, clip: Any, tokenizer: Any, image: np.ndarray, found: Sequence[Found], name: str) -> list[str]:
        """The colour of each object: the one whose texts its image is most like."""
        import torch

        texts = [one.format(colour=colour, name=name) for colour in COLOURS for one in TEMPLATES]
        embedded = clip.texts(texts, tokenizer, self.batch_size).view(len(COLOURS), len(TEMPLATES), -1)
        classes = of_length_one(embedded.mean(1))
        chosen: list[str] = []
        for some in batches(found, self.batch_size):
            crops = [cut_out(image, one) for one in some]
            with torch.no_grad():
                images = clip.images(clip.preprocessing.images(crops).to(self.device))
            chosen += [COLOURS[i] for i in (images @ classes.T).argmax(1).tolist()]
        return chosen


def record_of(prompt: Prompt) -> Any:
    """GenEval's record of a prompt: the keys tag, include and exclude, at the top or under extra_info."""
    info = prompt.info
    inner = info.get("extra_info")
    return inner if isinstance(inner, dict) and "include" in inner else info


def cut_out(image: np.ndarray, one: Found) -> np.ndarray:
    """The image inside the box of an object, with everything that is not the object grey."""
    import numpy as np

    masked = np.where(one.mask[..., None], image, np.uint8(0x99))
    left, top, right, bottom = (round(side) for side in one.box)
    return np.ascontiguousarray(masked[top:bottom, left:right])
