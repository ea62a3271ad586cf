"""Weights & Biases, by its library wandb."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from secrets import token_hex
from typing import Any

import wandb

from burnish.trackers.base import COLUMNS, GENERATIONS, SAMPLES, About, Notice, Sample
from burnish.trackers.media import kind_of, playable
from burnish.utils.feed_process import Outcome

LONGEST_TITLE = 63  # characters of an alert's
BETWEEN = 1  # seconds within which a second alert of a title is dropped


class Wandb:
    """A run of W&B, of one id over all resumptions; offline each of them is a folder of its own with that id."""

    def __init__(self, about: About) -> None:
        options, self._folder = about.options, about.folder
        self.id = about.id or token_hex(4)
        if options["mode"] == "offline":  # what tables show waits for wandb sync there
            os.environ.setdefault("WANDB_DATA_DIR", str(about.folder / "data"))
        self._run: Any = wandb.init(
            project=options["project"], entity=options["entity"], name=about.name, group=options["group"],
            tags=options["tags"] or None, mode=options["mode"], config=dict(about.config), dir=about.folder,
            id=self.id, resume="allow",
            # the remote of a repository may have a token in it, and this process prints nothing
            settings=wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True),
        )  # fmt: skip
        self.url: str | None = self._run.url
        if about.names == "lightrft":
            for part in ("train", "eval"):
                self._run.define_metric(f"{part}/*", step_metric=f"{part}/global_step")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        shown = any(one.shown for one in samples)
        columns = [*COLUMNS[:2], *(["shown"] if shown else []), *COLUMNS[2:]]
        table, drawn = wandb.Table(columns=columns), []
        for one in samples:
            made = self._made(one)
            picture = [wandb.Image(str(one.shown[0])) if _pictures(one) else None] if shown else []
            table.add_data(step, one.prompt, *picture, one.said if made is None else made, one.score)
            drawn += [] if made is None else [made]
        self._run.log({GENERATIONS: table} | ({SAMPLES: drawn} if drawn else {}), step=step)

    def alarm(self, notice: Notice) -> None:
        level = "INFO" if notice.over else "WARN"
        text = f"update {notice.update}: {notice.said}"
        self._run.alert(title=notice.title[:LONGEST_TITLE], text=text, level=level, wait_duration=BETWEEN)

    def close(self, outcome: Outcome) -> None:
        self._run.finish(exit_code=1 if outcome == "failed" else 0)

    def _made(self, one: Sample) -> Any:
        if one.file is None:
            return None
        kind = kind_of(one.file)
        if kind == "sound":  # its library reads them by another one, which it doesn't require
            return None if find_spec("soundfile") is None else wandb.Audio(str(one.file), caption=one.caption)
        if kind == "clip":
            file = playable(one.file, self._folder)
            return wandb.Video(str(file), caption=one.caption, format=file.suffix[1:])
        return wandb.Image(str(one.file), caption=one.caption)


def _pictures(one: Sample) -> bool:
    return bool(one.shown) and kind_of(one.shown[0]) == "picture"
