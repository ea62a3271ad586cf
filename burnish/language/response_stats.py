"""Counts statistics of single responses: how long, how repetitive, how sure at the beginning, of which form."""

from __future__ import annotations

import math
from collections.abc import Sequence

from burnish.types.completion import Completion
from burnish.types.response_stats import ResponseStats, outline, reflections

RUN = 4  # tokens of a run
FIRST = 8  # tokens whose entropy is watched


def response_stats(trace: Completion, texts: Sequence[str]) -> list[ResponseStats]:
    """Statistics of each response of a batch, whose texts are ``texts``.

    Arrays of one move off the device: a batch has hundreds of responses, and PyTorch's call costs more than a row.
    """
    ids, masks, logprob = (value.cpu().numpy() for value in (trace.ids, trace.mask, trace.logprob))
    found = []
    for text, own, mask, probs, finished in zip(texts, ids, masks, logprob, trace.finished.tolist(), strict=True):
        first = probs[mask][:FIRST].tolist()
        found.append(
            ResponseStats(
                length=int(mask.sum()),
                truncated=not finished,
                repeated=repeated(own[mask].tolist()),
                surprisal=-math.fsum(first) / len(first) if first else math.nan,
                outline=outline(text),
                reflections=reflections(text),
            )
        )
    return found


def repeated(ids: Sequence[int]) -> float:
    """Share of the runs of ``RUN`` tokens that occurred before; 0 without any run."""
    runs = list(zip(*(ids[start:] for start in range(RUN)), strict=False))
    return 1 - len(set(runs)) / len(runs) if runs else 0.0
