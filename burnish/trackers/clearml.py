"""ClearML, by its library clearml."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from logging import INFO, WARNING
from typing import Any

from clearml import Task

from burnish.trackers.base import ALARMS, COLUMNS, GENERATIONS, SAMPLES, About, Notice, Sample
from burnish.trackers.media import kind_of
from burnish.utils.feed_process import Outcome

# what its library would record by itself: programs' own calls, and the remote of a repository, which may have a token
BY_ITSELF = (
    "matplotlib", "tensorflow", "tensorboard", "pytorch", "xgboost", "scikit", "fastai", "lightgbm", "hydra",
    "detect_repository", "tfdefines", "joblib", "megengine", "catboost", "gradio",
)  # fmt: skip


class Clearml:
    """A task of ClearML, the same one over all resumptions."""

    def __init__(self, about: About) -> None:
        options = about.options
        self._online = options["mode"] == "online"
        os.environ.setdefault("CLEARML_NO_DEFAULT_SERVER", "1")  # which is a public one
        if not self._online:
            os.environ["CLEARML_CACHE_DIR"] = str(about.folder)
            Task.set_offline(True)
        Task._report_subprocess_enabled = False  # a process that takes ten seconds to end
        going_on: dict[str, Any] = {"reuse_last_task_id": False}
        if about.id is not None:  # 0: steps are counted as they are, and not from the last one
            going_on = {"reuse_last_task_id": about.id, "continue_last_task": 0}
        self._task: Any = Task.init(
            project_name=options["project"], task_name=about.name, tags=list(options["tags"]),
            auto_connect_arg_parser=False, auto_connect_frameworks=dict.fromkeys(BY_ITSELF, False),
            auto_resource_monitoring=False, auto_connect_streams=False, **going_on,
        )  # fmt: skip
        self.id: str = self._task.id
        self.url: str | None = self._task.get_output_log_web_page() if self._online else None
        self._task.connect_configuration(dict(about.config), name="options")
        self._log: Any = self._task.get_logger()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            title, _, series = name.partition("/")
            self._log.report_scalar(title, series or title, value=value, iteration=step)

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        rows: list[list[Any]] = [list(COLUMNS)]
        for number, one in enumerate(samples):
            rows.append([step, one.prompt, one.said, one.score])
            if one.file is not None:
                picture = kind_of(one.file) == "picture"
                report = self._log.report_image if picture else self._log.report_media
                report(SAMPLES, str(number), iteration=step, local_path=str(one.file))
        self._log.report_table(GENERATIONS, "samples", iteration=step, table_plot=rows)

    def alarm(self, notice: Notice) -> None:
        level = INFO if notice.over else WARNING
        text = f"{ALARMS}/{notice.name}, update {notice.update}: {notice.title}: {notice.said}"
        self._log.report_text(text, level=level, print_console=False)

    def close(self, outcome: Outcome) -> None:
        self._task.close()
        if self._online and outcome == "stopped":
            self._task.mark_stopped(force=True, status_message="the run was stopped")
        elif self._online and outcome == "failed":
            self._task.mark_failed(force=True, status_message="the run failed")
