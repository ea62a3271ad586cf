"""The pictures that a validation kept, and what they say about chance."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.json_text import parse_json
from burnish.report.reading import is_number, leads_out

ENOUGH = 4  # prompts, below which their spread says nothing


@dataclass(frozen=True)
class Sample:
    """A kept picture or response, and its verdict."""

    prompt: str
    reward: float | None  # None: missing
    components: dict[str, float | None]
    note: str
    picture: Path  # what was drawn; a response has none
    response: str | None = None
    shown: tuple[Path, ...] = ()  # pictures that the question is about
    answer: str | None = None  # the right one

    @property
    def exact(self) -> bool | None:
        """Whether the text was read or the question answered exactly right, if anybody asked."""
        value = self.components.get("ocr_exact" if self.response is None else "exact")
        return None if value is None else value == 1


Samples = dict[tuple[int, int], Sample]  # by number of the prompt and of the sample


def read_samples(validation: Path) -> Samples:
    """What is whole in the folder of a validation; a line that a crash has torn is left out."""
    file = validation / "samples.jsonl"
    found: Samples = {}
    run = validation.parents[1]
    for line in file.read_bytes().splitlines() if file.is_file() and not leads_out(file, run) else ():
        try:
            sample, place = _sample(parse_json(line), validation / "pictures")
            if any(leads_out(path, run) for path in (sample.picture, *sample.shown)):
                raise ValueError("a picture is not of this run")
        except (ValueError, KeyError, TypeError):
            continue
        found[place] = sample
    return found


def _sample(said: Any, pictures: Path) -> tuple[Sample, tuple[int, int]]:
    """What a line says.

    Raises:
        ValueError, KeyError, TypeError: it says something else than a run writes.
    """
    place = (int(said["index"]), int(said["sample"]))
    sample = Sample(
        prompt=said["prompt"],
        reward=said["reward"],
        components=said["components"],
        note=said["note"],
        picture=pictures / f"{place[0]:03d}-{place[1]:02d}.png",
        response=said.get("response"),
        shown=tuple(pictures / name for name in said.get("images", ())),
        answer=said.get("answer"),
    )
    texts = [sample.prompt, sample.note, sample.response or "", sample.answer or ""]
    numbers = [sample.reward, *sample.components.values()] if isinstance(sample.components, dict) else ["none"]
    if not all(isinstance(text, str) for text in texts) or not all(one is None or is_number(one) for one in numbers):
        raise ValueError("text is no text, or a number none")
    return sample, place


def chance(before: Mapping[tuple[int, int], Sample], after: Mapping[tuple[int, int], Sample], name: str) -> float:
    """How large a change of a mean may be that other prompts might not show: two standard errors.

    Equal prompts and equal noise are compared with each other, so that only what training changed counts.

    Args:
        before: kept samples of one validation.
        after: those of another.
        name: of a component, or ``reward``.

    Returns:
        0 where too few prompts were kept to say.
    """
    changes: defaultdict[int, list[float]] = defaultdict(list)
    for place in before.keys() & after.keys():
        pair = [one.reward if name == "reward" else one.components.get(name) for one in (before[place], after[place])]
        if pair[0] is not None and pair[1] is not None:
            changes[place[0]].append(pair[1] - pair[0])
    means = [math.fsum(some) / len(some) for some in changes.values()]
    if len(means) < ENOUGH:
        return 0.0
    centre = math.fsum(means) / len(means)
    variance = math.fsum((value - centre) ** 2 for value in means) / (len(means) - 1)
    return 2 * math.sqrt(variance / len(means))
