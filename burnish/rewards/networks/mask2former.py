"""Objects in a picture by Mask2Former, read from its outputs as mmdet reads them, which GenEval's rules are about.

The post-processing of transformers makes masks of 384 x 384 pixels binary and enlarges them, which moves boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.rewards.networks.inputs import IMAGENET_MEAN, IMAGENET_STD
from burnish.rewards.networks.loading import frozen
from burnish.utils.errors import UserError
from burnish.utils.weights import load_network

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

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
MOST = 100  # detections of a picture
LEAST = 0.05  # score of what is kept, far below what any rule reads


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
    """The objects of one picture, uint8 [H, W, 3]."""
    import torch

    pixels, size = preprocessed(image)
    with torch.no_grad():
        out = network(pixel_values=pixels.to(device, network.dtype))
    classes, masks = (logits[0].float() for logits in (out.class_queries_logits, out.masks_queries_logits))
    return read_detections(classes, masks, tuple(pixels.shape[-2:]), size, image.shape[:2])


def preprocessed(image: np.ndarray) -> tuple[Tensor, tuple[int, int]]:
    """A picture as the detector reads it, [1, 3, H, W], and the height and width of the picture in it.

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
        size: of the picture in it, at the top left.
        original: of the picture as it was.
    """
    import torch.nn.functional as F

    share = classes.softmax(-1)[:, :-1]
    scores, places = share.flatten().topk(min(MOST, share.numel()))
    kept = scores > LEAST  # a mask only makes a score smaller
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
