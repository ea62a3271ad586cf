"""Prompts one by one as plain data: their rewards over the updates, and the samples that were made of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean as mean
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from burnish.config.run_folder import RunFolder
from burnish.report.samples import (
    MOST_SCORED,
    Sample,
    TokenFields,
    chosen,
    cut,
    newest,
    read_prompts,
    read_samples,
    read_scores,
    relative,
    short,
    shorts,
)
from burnish.utils.paths import RECORDS
from burnish.utils.records import RECORD, cached, read_records, stamp

SPARK = 24  # values of the small curve of a prompt
LABEL = 400  # characters of a prompt in a table
NOTE = 2000  # characters of a note
ROUNDING = 1e-6  # relative, of rewards in float32
MEDIA = (".png", ".jpg", ".mp4", ".webp", ".wav")


@dataclass(config=RECORD)
class Group:
    """The samples of a training prompt in an update."""

    uid: str
    prompt: str
    source: str
    samples: list[int]
    rewards: list[float | None]
    advantages: list[float | None]


@dataclass(config=RECORD)
class Groups:
    """A line of groups.jsonl."""

    update: int
    groups: list[Group]


@dataclass(config=RECORD, kw_only=True)
class KeptSample(TokenFields):
    """A training sample that was kept as a file (rollout.save)."""

    uid: str
    sample: int
    note: str | None = None
    response: str | None = None
    file_name: str | None = None
    components: dict[str, float | None] | None = None


_GROUPS, _KEPT = TypeAdapter(Groups), TypeAdapter(KeptSample)


def prompt_table(folder: RunFolder) -> dict[str, Any]:
    """Every validation prompt with its rewards over the updates."""
    updates = chosen(folder.validations(), MOST_SCORED)
    scored = (
        (update, index, score.source, [score.reward])
        for update in updates for (index, _), score in sorted(read_scores(folder.validation(update)).items())
    )  # fmt: skip
    texts = newest(folder, read_prompts)
    rows = [
        row | {"index": index, "prompt": cut(texts.get(index, {}).get("prompt", ""), LABEL)}
        | {"answer": cut(texts.get(index, {}).get("answer"), LABEL)}
        for index, row in sorted(_rows(scored).items())
    ]  # fmt: skip
    return {"updates": updates, "prompts": rows, "kept": sorted({index for index, _ in newest(folder, read_samples)})}


def trained_prompts(folder: RunFolder) -> dict[str, Any]:
    """Every recorded training prompt with the rewards of its groups over the updates."""
    recorded = _read_groups(folder.groups)
    groups = [(update, group) for update in sorted(recorded) for group in recorded[update]]
    texts = {group.uid: cut(group.prompt, LABEL) for _, group in groups}
    table = _rows((update, group.uid, group.source, group.rewards) for update, group in groups)
    rows = [
        row | {"index": index, "prompt": texts[uid], "answer": None} for index, (uid, row) in enumerate(table.items())
    ]
    return {"updates": sorted(recorded), "prompts": rows, "kept": []}


def _rows(scored: Iterable[tuple[int, Any, str, list[float | None]]]) -> dict[Any, dict[str, Any]]:
    """How each prompt went, as a table shows it, from rewards by update, prompt and source."""
    rewards: dict[Any, dict[int, list[float]]] = {}
    sources: dict[Any, str] = {}
    for update, prompt, source, values in scored:
        known = [value for value in values if value is not None]
        if known:
            rewards.setdefault(prompt, {}).setdefault(update, []).extend(known)
            sources[prompt] = source
    highest = max((value for prompt in rewards.values() for values in prompt.values() for value in values), default=0.0)
    return {
        prompt: _row(by_update, highest)
        | {"source": sources[prompt], "seen": len(by_update), "update": max(by_update)}
        for prompt, by_update in rewards.items()
    }  # fmt: skip


def _row(rewards: Mapping[int, list[float]], highest: float) -> dict[str, Any]:
    """How a prompt went.

    ``never`` is true where no later mean is above the first one, and there was room above it.
    """
    means = [mean(values) for values in rewards.values()]
    spreads = [max(values) - min(values) for values in rewards.values() if len(values) > 1]
    first, last, best = means[0], means[-1], max(means)
    return {
        "first": short(first), "last": short(last), "best": short(best),
        "change": short(0.0 if _alike(first, last) else last - first) if len(means) > 1 else None,
        "zero": short(sum(spread == 0 for spread in spreads) / len(spreads)) if spreads else None,
        "never": len(means) > 1 and first < highest and _alike(first, best),
        "spark": [short(value) for value in chosen(means, SPARK)],
    }  # fmt: skip


def _alike(value: float, other: float) -> bool:
    """Whether two means differ by the rounding of rewards alone."""
    return math.isclose(value, other, rel_tol=ROUNDING)


def walk(folder: RunFolder, index: int, updates: Sequence[int] | None = None) -> dict[str, Any]:
    """The samples of a validation prompt at some updates, or at all, made with the same noise."""
    asked = chosen(folder.validations()) if updates is None else updates
    kept = {update: own for update in asked if (own := of_prompt(folder, update, index))}
    shown = [
        {"update": update, "samples": [sample_data(folder, sample) for sample in own]} for update, own in kept.items()
    ]
    return {"index": index, "updates": shown} | (prompt_data(folder, kept[max(kept)][0]) if kept else {})


def of_prompt(folder: RunFolder, update: int, index: int) -> list[Sample]:
    """The samples of a prompt that a validation kept, in order."""
    kept = read_samples(folder.validation(update))
    return [kept[place] for place in sorted(kept) if place[0] == index]


def prompt_data(folder: RunFolder, sample: Sample) -> dict[str, Any]:
    """What a prompt says and shows."""
    return {
        "prompt": cut(sample.prompt), "answer": cut(sample.answer),
        "shown": [name for file in sample.shown if (name := relative(file, folder))],
        "written": sample.response is not None,
    }  # fmt: skip


def sample_data(folder: RunFolder, sample: Sample) -> dict[str, Any]:
    """A sample with its scores; media by their path in the folder of the run."""
    data: dict[str, Any] = {
        "sample": sample.sample, "reward": short(sample.reward), "exact": sample.exact, "note": cut(sample.note, NOTE),
        "components": shorts(sample.components),
    }  # fmt: skip
    if sample.response is not None:
        return data | {"response": cut(sample.response), "tokens": sample.tokens}
    return data | {"file": relative(sample.image, folder)}


def groups(folder: RunFolder, update: int | None = None) -> dict[str, Any]:
    """The groups of an update, the last one if None, and of which updates there are some."""
    recorded = _read_groups(folder.groups)
    updates = sorted(recorded)
    wanted = updates[-1] if update is None and updates else update
    kept = {} if wanted is None else _kept(folder, wanted)
    shown = [
        {"prompt": cut(group.prompt, LABEL * 5), "source": group.source, "samples": [
            {"sample": number, "reward": reward, "advantage": advantage} | kept.get((group.uid, number), {})
            for number, reward, advantage in zip(group.samples, group.rewards, group.advantages, strict=False)
        ]}
        for group in recorded.get(wanted or 0, [])
    ]  # fmt: skip
    with_files = sorted({int(place.name[:6]) for place in folder.samples.glob("[0-9]" * 6 + "*")})
    return {"updates": updates, "update": wanted, "groups": shown, "kept": with_files}


@cached(stamp)
def _read_groups(file: Path) -> dict[int, list[Group]]:
    """By update; of one that was repeated after a crash, those that count."""
    return {line.update: line.groups for line in read_records(file, _GROUPS, file.parent)}


def _kept(folder: RunFolder, update: int) -> dict[tuple[str, int], dict[str, Any]]:
    """Of the samples that were kept as files: what each shows or says, by prompt and number."""
    samples = {}
    for place in sorted(folder.samples.glob(f"{update:06d}-*")):
        for one in read_records(place / RECORDS, _KEPT, folder.path) if not place.is_symlink() else ():
            data: dict[str, Any] = {"note": cut(one.note or "", NOTE), "components": shorts(one.components or {})}
            if one.response is not None:
                data |= {"response": cut(one.response), "tokens": one.tokens}
            name = one.file_name or ""
            if Path(name).name == name and name.endswith(MEDIA) and (place / name).is_file():
                data["file"] = relative(place / name, folder)
            samples[one.uid, one.sample] = data
    return samples
