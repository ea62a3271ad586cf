"""How likely a recogniser reads a text in a picture, with gradients to the picture."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.rewards.images.recognition.graph import Graph


def lines(pictures: Tensor, height: int) -> Tensor:
    """Pictures [B, 3, H, W] RGB in [0, 1] as a recogniser wants them: ``height`` high, BGR in [-1, 1]."""
    width = max(round(pictures.shape[-1] * height / pictures.shape[-2]), 1)
    scaled = F.interpolate(pictures, (height, width), mode="bilinear", align_corners=False, antialias=True)
    return scaled.flip(1) * 2 - 1


def log_likelihood(pictures: Tensor, answers: Sequence[Sequence[int]], graph: Graph, height: int) -> Tensor:
    """Log-probability that each picture is read as its answer, per character (Graves et al. 2006, eq. 8).

    Args:
        pictures: [B, 3, H, W] RGB in [0, 1].
        answers: codes of the characters, at least one each; 0 is CTC's blank and no character.
        graph: pictures [B, 3, height, W] to logits [B, T, C].
        height: in pixels, of what the graph reads.

    Returns:
        [B]; -inf where an answer has more characters than the picture has columns.
    """
    logits = graph(lines(pictures.float(), height))
    count, columns, _ = logits.shape
    lengths = torch.tensor([len(answer) for answer in answers])
    loss = F.ctc_loss(
        logits.log_softmax(-1).transpose(0, 1),
        torch.tensor([code for answer in answers for code in answer], device=logits.device),
        torch.full((count,), columns),
        lengths,
        reduction="none",
    )
    return -loss / lengths.to(loss)
