"""Statistics of single responses: how long, how repetitive, how sure at their beginning, of which form."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from burnish.types.completion import Completion
from burnish.types.said import Said, outline

RUN = 4  # tokens of a run
FIRST = 8  # tokens whose entropy is watched


def said(trace: Completion, row: int, text: str) -> Said:
    """Statistics of a response of a batch, whose text is ``text``."""
    chosen = trace.mask[row]
    first = -trace.logprob[row, chosen][:FIRST].double()
    finished = bool(trace.finished[row])
    return Said(
        length=int(chosen.sum()),
        truncated=not finished,
        repeated=repeated(trace.ids[row, chosen]),
        surprisal=float(first.mean()) if len(first) else math.nan,
        outline=outline(text),
    )


def repeated(ids: Tensor) -> float:
    """Share of the runs of ``RUN`` tokens of [T] that occurred before; 0 without any run."""
    if len(ids) <= RUN:
        return 0.0
    runs = torch.stack([ids[start : len(ids) - RUN + 1 + start] for start in range(RUN)], 1).cpu().numpy()
    joined = np.ascontiguousarray(runs).view(np.dtype((np.void, runs.dtype.itemsize * RUN))).ravel()
    return 1 - len(np.unique(joined)) / len(joined)
