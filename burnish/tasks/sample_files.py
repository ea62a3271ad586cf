"""Samples of training and of validations that are kept as files: a folder per prompt of an update.

Whoever samples for training writes them, so pixels travel nowhere. A folder is written beside its place and renamed,
so that one that is there is complete, and an update that is repeated after a crash replaces what it wrote before. One
index of all is what the datasets library loads: it wants one type in a column, which a file of a prompt can't promise.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from burnish.options import SaveOptions
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.types.rollout import Scores
from burnish.utils.disk import write_atomically, writing
from burnish.utils.json_text import parse_json
from burnish.utils.paths import RECORDS
from burnish.utils.reading import read_file
from burnish.utils.video import clip_format, encode_clip

INDEX = "metadata.jsonl"  # of all, under the name by which datasets knows it; names of files are from its folder


@dataclass
class SampleFiles:
    """Where a run keeps samples, and which."""

    folder: Path
    options: SaveOptions
    section: str = "rollout.save"
    first: int = 1  # update of which samples are kept

    def wanted(self, update: int, group: int) -> bool:
        """Whether samples of a prompt are kept.

        Args:
            update: for which it is sampled.
            group: its number in the batch of that update.
        """
        return (update - self.first) % self.options.every == 0 and group < self.options.prompts

    def keep(
        self,
        update: int,
        prompts: Sequence[Prompt],
        group: Tensor,
        sample: Tensor,
        scores: Scores,
        write: Callable[[Path, int], Mapping[str, Any]],
        *,
        version: int,
        drawn: Mapping[str, Any],
    ) -> None:
        """Write the wanted ones of a batch of samples.

        Args:
            update: for which they were sampled.
            prompts: [B].
            group: [B] number of the prompt in the batch of the update.
            sample: [B] number of the sample.
            scores: [B].
            write: writes what a row shows into a folder; what is recorded of it.
            version: policy updates behind the weights that sampled.
            drawn: what decides on the random draws, with the prompt and the number of the sample; see ``Job.seeds``.
        """
        for number in dict.fromkeys(group.tolist()):
            if not self.wanted(update, number):
                continue
            rows = (group == number).nonzero().flatten().tolist()
            # several batches of an update count their prompts from 0; and a prompt may come again, with other samples
            target = self.folder / f"{update:06d}-{prompts[rows[0]].uid}-{int(sample[rows[0]]):03d}"
            away = target.with_name(f".{target.name}.new")
            with writing(target):
                shutil.rmtree(away, ignore_errors=True)
                away.mkdir(parents=True)
                about = {"folder": target.name, "update": update, "version": version, "group": number, **drawn}
                about |= _about(prompts[rows[0]]) | dict(_written(away, prompts[rows[0]]))
                records = [
                    about | {"sample": int(sample[row])} | dict(write(away, row)) | _scored(scores, row) for row in rows
                ]
                write_lines(away / RECORDS, records, ascii=True)
                shutil.rmtree(target, ignore_errors=True)
                os.replace(away, target)


def write_index(folder: Path) -> None:
    """Gather the records of all prompts in one file."""
    lines = []
    for place in sorted(folder.iterdir()) if folder.is_dir() else ():
        if place.name.startswith(".") or not (place / RECORDS).is_file():
            continue
        for record in map(parse_json, read_file(place / RECORDS).splitlines()):
            for kind in ("images", "videos", "audios"):
                record[kind] = [f"{place.name}/{name}" for name in record[kind] or ()]
            if record.get("file_name") is not None:
                record["file_name"] = f"{place.name}/{record['file_name']}"
            lines.append(json.dumps(record) + "\n")
    if lines:
        write_atomically(folder / INDEX, "".join(lines).encode())


def _about(prompt: Prompt) -> dict[str, Any]:
    """Every field of a prompt; keys of the user as one text, since datasets wants one type in a column."""
    return {
        "prompt": prompt.text, "messages": json.dumps(prompt.chat()) if prompt.messages else None,
        "negative_prompt": prompt.negative, "answer": prompt.answer, "data_source": prompt.source,
        "label": prompt.label, "record": json.dumps(prompt.info) if prompt.info else None, "where": prompt.where,
        "uid": prompt.uid,
    }  # fmt: skip


def write_lines(path: Path, records: Iterable[Mapping[str, Any]], *, ascii: bool = False) -> None:
    """Write a JSON object per line."""
    lines = [json.dumps(record, ensure_ascii=ascii) + "\n" for record in records]
    path.write_text("".join(lines), encoding="utf-8")


def scores_of_row(scores: Scores, row: int) -> tuple[float | None, dict[str, float | None]]:
    """A sample's reward, and the scores that it is made of by name; None where they are missing."""
    reward = None if scores.missing[row] else known_or_none(float(scores.reward[row]))
    components = zip(scores.names, scores.components[row].tolist(), strict=True)
    return reward, {name: known_or_none(value) for name, value in components}


def known_or_none(value: float) -> float | None:
    """NaN as JSON has it."""
    return None if math.isnan(value) else value


def _scored(scores: Scores, row: int) -> dict[str, Any]:
    reward, components = scores_of_row(scores, row)
    return {"reward": reward, "components": components, "note": scores.notes[row], "fault": scores.faults[row]}


def _written(folder: Path, prompt: Prompt) -> Iterator[tuple[str, Any]]:
    """Write what a prompt shows and plays; the names of the files, by kind."""
    for kind, every in (("images", prompt.images), ("videos", prompt.videos), ("audios", prompt.audios)):
        names = [_file(folder, f"{kind[:-1]}-{number}", one) for number, one in enumerate(every)]
        yield kind, names or None
    inputs = {name: _file(folder, f"input-{name}", one) for name, one in prompt.inputs}
    yield "inputs", json.dumps(inputs) if inputs else None


def _file(folder: Path, stem: str, media: Media) -> str:
    if media.kind == "image":
        name = f"{stem}.png"
        media.image().save(folder / name)
        return name
    if media.frames:
        frames, fps = media.video()
        name = f"{stem}.{clip_format()}"
        (folder / name).write_bytes(encode_clip(frames, fps))
        return name
    content = media.read()
    suffix = Path(media.path).suffix.lstrip(".") if media.path else ""
    name = f"{stem}.{suffix or ('wav' if media.kind == 'audio' else 'mp4')}"  # who decodes it looks inside
    (folder / name).write_bytes(content)
    return name
