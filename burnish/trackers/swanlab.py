"""SwanLab, by its library swanlab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from secrets import token_hex
from typing import Any

import swanlab

from burnish.trackers.base import ALARMS, COLUMNS, GENERATIONS, SAMPLES, About, Notice, Sample
from burnish.trackers.media import gif, kind_of
from burnish.utils.feed_process import Outcome


class Swanlab:
    """An experiment of SwanLab, of one id over all resumptions; offline each of them is a folder of its own."""

    def __init__(self, about: About) -> None:
        options = about.options
        self.id = about.id or token_hex(8)
        self._run: Any = swanlab.init(
            project=options["project"], workspace=options["workspace"], name=about.name, group=options["group"],
            tags=options["tags"] or None, mode=options["mode"], config=dict(about.config), log_dir=str(about.folder),
            id=self.id, resume="allow",
            settings=swanlab.Settings(
                interactive=False, terminal=swanlab.Settings.Terminal(proxy_type="none"),
                probe=swanlab.Settings.Probe(git=False),  # the remote of a repository may have a token in it
            ),
        )  # fmt: skip
        self.url: str | None = self._run.url if options["mode"] == "online" else None

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        rows, drawn = [], []
        for one in samples:
            rows.append([step, one.prompt, one.said, one.score])
            drawn += [] if (made := _made(one)) is None else [made]
        table = swanlab.echarts.Table()
        table.add(headers=list(COLUMNS), rows=rows)
        self._run.log({GENERATIONS: table} | ({SAMPLES: drawn} if drawn else {}), step=step)

    def alarm(self, notice: Notice) -> None:
        self._run.log({f"{ALARMS}/{notice.name}": swanlab.Text(notice.said, caption=notice.title)}, step=notice.update)

    def close(self, outcome: Outcome) -> None:
        state = {"finished": "success", "stopped": "aborted", "failed": "crashed"}[outcome]
        self._run.finish(state=state, error=f"the run {outcome}" if outcome == "failed" else None)


def _made(one: Sample) -> Any:
    if one.file is None:
        return None
    kind = kind_of(one.file)
    if kind == "sound":  # its library reads them by another one, which it doesn't require
        return None if find_spec("soundfile") is None else swanlab.Audio(str(one.file), caption=one.caption)
    if kind == "clip":
        return swanlab.Video(gif(one.file), caption=one.caption)
    return swanlab.Image(str(one.file), caption=one.caption)
