"""Trackio, by its library trackio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

import trackio

from burnish.trackers.base import COLUMNS, GENERATIONS, SAMPLES, About, Notice, Sample
from burnish.trackers.media import kind_of, playable
from burnish.utils.feed_process import Outcome


class Trackio:
    """A run of Trackio. It is found again by its name, which therefore ends in something that no other run has."""

    def __init__(self, about: About) -> None:
        options, self._folder = about.options, about.folder
        self.id = about.id or f"{about.name}-{token_hex(3)}"
        self._run: Any = trackio.init(
            project=options["project"], name=self.id, group=options["group"], space_id=options["space"],
            config=dict(about.config), resume="allow", embed=False,
        )  # fmt: skip
        space = options["space"]
        self.url: str | None = f"https://huggingface.co/spaces/{space}" if space and "/" in space else None

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        rows: list[list[Any]] = []
        drawn: dict[str, Any] = {}
        for number, one in enumerate(samples):
            made = _made(one, self._folder)
            rows.append([step, one.prompt, one.said if made is None else made, one.score])
            drawn |= {} if made is None else {f"{SAMPLES}/{number}": made}
        self._run.log({GENERATIONS: trackio.Table(columns=list(COLUMNS), data=rows), **drawn}, step=step)

    def alarm(self, notice: Notice) -> None:
        level = trackio.AlertLevel.INFO if notice.over else trackio.AlertLevel.WARN
        self._run.alert(notice.title, notice.said, level=level, step=notice.update)

    def close(self, outcome: Outcome) -> None:
        self._run.finish()


def _made(one: Sample, folder: Path) -> Any:
    if one.file is None:
        return None
    kind = kind_of(one.file)
    if kind == "sound":
        return trackio.Audio(str(one.file), caption=one.caption)
    if kind == "clip":
        file = playable(one.file, folder)
        return trackio.Video(str(file), caption=one.caption)
    return trackio.Image(str(one.file), caption=one.caption)
