"""Libraries of trackers behind accelerate's trackers: how each opens a run, and how it shows samples and alarms."""

from __future__ import annotations

import io
import json
import os
import re
import time
import wave
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import zip_longest
from logging import INFO, WARNING
from pathlib import Path
from secrets import token_hex
from textwrap import indent
from typing import Any, Literal

from accelerate import PartialState
from accelerate.tracking import ClearMLTracker, GeneralTracker, SwanLabTracker, TensorBoardTracker, TrackioTracker
from accelerate.tracking import WandBTracker as AccelerateWandb
from PIL import Image

from burnish.alarms.record import Raised
from burnish.config.tasks import FILES
from burnish.hooks.trackers import Delivery, file_of, gif, output_of, playable, sendable, title_of
from burnish.report.samples import Sample
from burnish.utils.json_text import flattened

GENERATIONS = "val/generations"  # verl's name of the table of validation samples
COLUMNS = ("step", "input", "output", "score")  # of that table
SAMPLES = "val/samples"  # generated images, clips and sounds
CODE = "    "  # before lines that Markdown is to show as they are

# what ClearML would record by itself: calls of other libraries, and the remote of a repository, which may have a token
CLEARML_RECORDS = (
    "matplotlib", "tensorflow", "tensorboard", "pytorch", "xgboost", "scikit", "fastai", "lightgbm", "hydra",
    "detect_repository", "tfdefines", "joblib", "megengine", "catboost", "gradio",
)  # fmt: skip
MLFLOW_NAME, MLFLOW_TAG, MLFLOW_PARAM = 250, 5000, 500  # characters that every server takes
MLFLOW_PARAMS = 100  # of a request

Outcome = Literal["finished", "stopped", "failed"]  # of a run


class Library(ABC):
    """A run as a tracker shows it; opened when it is made."""

    id: str
    url: str | None = None  # where to look at the run

    def __init__(self, tracker: GeneralTracker) -> None:
        PartialState()  # accelerate's own log needs it
        tracker.main_process_only = False  # this process is the only one
        tracker.start()
        self.tracker: Any = tracker

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Metrics of an update; steps only rise."""
        self.tracker.log(dict(values), step=step)

    @abstractmethod
    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Samples of a validation."""

    @abstractmethod
    def log_alarm(self, alarm: Raised) -> None:
        """An alarm, after the metrics of its update."""

    def finish(self, outcome: Outcome) -> None:
        """Write what is left; the run may be opened again later."""
        self.tracker.finish()


def _media(library: Any, sample: Sample, clip: Callable[[Path, str], Any]) -> Any:
    """What was generated, as an image, clip or sound of W&B, SwanLab or Trackio; None for a response."""
    file, score = file_of(sample), "missing" if sample.reward is None else f"{sample.reward:.4g}"
    if file is None:
        return None
    caption = f"{score} | {sample.prompt}"
    if FILES[file.suffix] == "image":
        return library.Image(str(file), caption=caption)
    if FILES[file.suffix] == "clip":
        return clip(file, caption)
    if library.__name__ != "trackio" and find_spec("soundfile") is None:  # which they don't require, and read them by
        return None
    return library.Audio(str(file), caption=caption)


def _rows(step: int, samples: Sequence[Sample], media: Sequence[Any] = ()) -> list[list[Any]]:
    """Samples as rows of ``COLUMNS``: what was generated, or its file's name where it is not a medium there."""
    outputs = [output_of(sample) if medium is None else medium for sample, medium in zip_longest(samples, media)]
    return [[step, one.prompt, output, one.reward] for one, output in zip(samples, outputs, strict=True)]


class Wandb(Library):
    """A run of W&B, of one id over all resumptions; offline each of them is a folder of its own with that id."""

    def __init__(self, run: Delivery) -> None:
        import wandb

        options, self._folder, self.id = run.options, run.place, run.id or token_hex(4)
        if options["mode"] == "offline":  # what tables show waits for wandb sync there
            os.environ.setdefault("WANDB_DATA_DIR", str(run.place / "data"))
        super().__init__(AccelerateWandb(
            options["project"], **options["arguments"], name=run.title,
            tags=options["tags"] or None, mode=options["mode"], config=dict(run.config), dir=run.place, id=self.id,
            resume="allow", reinit="finish_previous",
            # the command line and the remote of a repository may have a token in them
            settings=wandb.Settings(
                console="off", silent=True, disable_git=True, disable_code=True, x_disable_meta=True,
                # also when this process ends
                init_timeout=max(run.wait, 10), finish_timeout=max(run.wait, 1), finish_timeout_raises=True,
            ),
        ))  # fmt: skip
        self._run: Any = self.tracker.run
        self.url = self._run.url

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        import wandb

        prompts = [[file for file in sendable(sample.shown[:1]) if FILES[file.suffix] == "image"] for sample in samples]
        with_prompt = any(prompts)
        table = wandb.Table(columns=[*COLUMNS[:2], *(["shown"] if with_prompt else []), *COLUMNS[2:]])
        media = [_media(wandb, sample, self._clip) for sample in samples]
        for row, images in zip(_rows(step, samples, media), prompts, strict=True):
            shown = [wandb.Image(str(images[0])) if images else None] if with_prompt else []
            table.add_data(*row[:2], *shown, *row[2:])
        generated = [medium for medium in media if medium is not None]
        self._run.log({GENERATIONS: table} | ({SAMPLES: generated} if generated else {}), step=step)

    def _clip(self, file: Path, caption: str) -> Any:
        import wandb

        file = playable(file, self._folder)
        return wandb.Video(str(file), caption=caption, format=file.suffix[1:])

    def log_alarm(self, alarm: Raised) -> None:
        self._run.alert(
            title=title_of(alarm)[:63],  # characters, the longest that W&B takes
            text=f"update {alarm.update}: {alarm.text}", level="INFO" if alarm.over is not None else "WARN",
            wait_duration=1,  # second within which another alert of the title is dropped
        )  # fmt: skip

    def finish(self, outcome: Outcome) -> None:
        self._run.finish(exit_code=1 if outcome == "failed" else 0)


class Swanlab(Library):
    """An experiment of SwanLab, of one id over all resumptions; offline each of them is a folder of its own."""

    def __init__(self, run: Delivery) -> None:
        import swanlab

        options, self.id = run.options, run.id or token_hex(8)
        super().__init__(SwanLabTracker(
            options["project"], **options["arguments"], name=run.title,
            tags=options["tags"] or None, mode=options["mode"], config=dict(run.config), log_dir=str(run.place),
            id=self.id, resume="allow", reinit=True,
            settings=swanlab.Settings(
                interactive=False, terminal=swanlab.Settings.Terminal(proxy_type="none"),
                # the command line and the remote of a repository may have a token in them
                probe=swanlab.Settings.Probe(git=False, runtime=False),
            ),
        ))  # fmt: skip
        self._run: Any = self.tracker.run
        self.url = self._run.url if options["mode"] == "online" else None

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        import swanlab

        table = swanlab.echarts.Table()
        table.add(headers=list(COLUMNS), rows=_rows(step, samples))
        # it plays GIFs alone
        media = [_media(swanlab, sample, lambda file, caption: swanlab.Video(gif(file), caption)) for sample in samples]
        generated = [medium for medium in media if medium is not None]
        self._run.log({GENERATIONS: table} | ({SAMPLES: generated} if generated else {}), step=step)

    def log_alarm(self, alarm: Raised) -> None:
        import swanlab

        self._run.log({f"alarms/{alarm.name}": swanlab.Text(alarm.text, caption=title_of(alarm))}, step=alarm.update)

    def finish(self, outcome: Outcome) -> None:
        state = {"finished": "success", "stopped": "aborted", "failed": "crashed"}[outcome]
        self._run.finish(state=state, error="the run failed" if outcome == "failed" else None)


class Trackio(Library):
    """A run of Trackio. It is found again by its name, which therefore ends in something that no other run has."""

    def __init__(self, run: Delivery) -> None:
        options, self._folder = run.options, run.place
        self.id, space = run.id or f"{run.title}-{token_hex(3)}", options["arguments"].get("space_id")
        super().__init__(TrackioTracker(
            options["project"], **options["arguments"], name=self.id, config=dict(run.config),
            resume="allow", embed=False,
        ))  # fmt: skip
        self.url = f"https://huggingface.co/spaces/{space}" if space and "/" in space else None

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        import trackio

        def clip(file: Path, caption: str) -> Any:
            return trackio.Video(str(playable(file, self._folder)), caption=caption)

        media = [_media(trackio, sample, clip) for sample in samples]
        generated = {f"{SAMPLES}/{index}": medium for index, medium in enumerate(media) if medium is not None}
        table = trackio.Table(columns=list(COLUMNS), data=_rows(step, samples, media))
        self.tracker.run.log({GENERATIONS: table, **generated}, step=step)

    def log_alarm(self, alarm: Raised) -> None:
        import trackio

        level = trackio.AlertLevel.INFO if alarm.over is not None else trackio.AlertLevel.WARN
        self.tracker.run.alert(title_of(alarm), alarm.text, level=level, step=alarm.update)


class Clearml(Library):
    """A task of ClearML, the same one over all resumptions."""

    def __init__(self, run: Delivery) -> None:
        from clearml import Task

        options, self._online = run.options, run.options["mode"] == "online"
        os.environ.setdefault("CLEARML_NO_DEFAULT_SERVER", "1")  # which is a public one
        if not self._online:
            os.environ["CLEARML_CACHE_DIR"] = str(run.place)
            Task.set_offline(True)
        Task._report_subprocess_enabled = False  # a process that takes ten seconds to end
        resume: dict[str, Any] = {"reuse_last_task_id": False}
        if run.id is not None:  # 0: steps are counted as they are, and not from the last one
            resume = {"reuse_last_task_id": run.id, "continue_last_task": 0}
        super().__init__(ClearMLTracker(
            project_name=options["project"], task_name=run.title, tags=options["tags"], **options["arguments"],
            auto_connect_arg_parser=False, auto_connect_frameworks=dict.fromkeys(CLEARML_RECORDS, False),
            auto_resource_monitoring=False, auto_connect_streams=False, **resume,
        ))  # fmt: skip
        self._task: Any = self.tracker.task
        self._task.connect_configuration(dict(run.config), name="options")
        self._log: Any = self._task.get_logger()
        self.id = self._task.id
        self.url = self._task.get_output_log_web_page() if self._online else None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():  # accelerate would show each in a chart of its own
            title, _, series = name.partition("/")
            self._log.report_scalar(title, series or title, value=value, iteration=step)

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        for index, sample in enumerate(samples):
            if (file := file_of(sample)) is not None:
                report = self._log.report_image if FILES[file.suffix] == "image" else self._log.report_media
                report(SAMPLES, str(index), iteration=step, local_path=str(file))
        self._log.report_table(
            GENERATIONS, "samples", iteration=step, table_plot=[list(COLUMNS), *_rows(step, samples)]
        )

    def log_alarm(self, alarm: Raised) -> None:
        text = f"alarms/{alarm.name}, update {alarm.update}: {title_of(alarm)}: {alarm.text}"
        self._log.report_text(text, level=INFO if alarm.over is not None else WARNING, print_console=False)

    def finish(self, outcome: Outcome) -> None:
        super().finish(outcome)
        if self._online and outcome == "stopped":
            self._task.mark_stopped(force=True, status_message="the run was stopped")
        elif self._online and outcome == "failed":
            self._task.mark_failed(force=True, status_message="the run failed")


class Mlflow(Library):
    """A run of MLflow, the same one over all resumptions.

    By its client: accelerate's tracker sets the address for the whole process and records the remote of a repository.
    """

    def __init__(self, run: Delivery) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        options = run.options
        address = options["arguments"].get("tracking_uri") or os.environ.get("MLFLOW_TRACKING_URI")
        if address is None:  # files: a new database takes seconds to make, and is broken if killed meanwhile
            os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
            address = run.place.as_uri()
        self._client: Any = MlflowClient(**options["arguments"] | {"tracking_uri": address})
        self.url = address if address.startswith("http") else None
        tags = dict.fromkeys(options["tags"], "true")
        if run.id is not None:
            self.id = run.id
            self._client.update_run(self.id, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(options["project"])
        number = experiment.experiment_id if experiment else self._client.create_experiment(options["project"])
        self.id = self._client.create_run(number, run_name=run.title, tags=tags).info.run_id
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in flattened(run.config)}
        params = [Param(_allowed(name), text[:MLFLOW_PARAM]) for name, text in texts.items()]
        for begin in range(0, len(params), MLFLOW_PARAMS):
            self._client.log_batch(self.id, params=params[begin : begin + MLFLOW_PARAMS])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        self._client.log_batch(self.id, metrics=[Metric(_allowed(name), v, now, step) for name, v in values.items()])

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        rows = [dict(zip(COLUMNS, row, strict=True)) for row in _rows(step, samples)]
        for index, sample in enumerate(samples):
            if (file := file_of(sample)) is not None and FILES[file.suffix] == "image":
                self._client.log_image(self.id, Image.open(file, formats=["PNG"]), key=f"{SAMPLES}/{index}", step=step)
            elif file is not None:
                self._client.log_artifact(self.id, str(file), f"{SAMPLES}/step_{step:06d}")
        self._client.log_text(self.id, json.dumps(rows, indent=1), f"{GENERATIONS}/step_{step:06d}.json")

    def log_alarm(self, alarm: Raised) -> None:
        text = alarm.text if alarm.over is not None else f"since update {alarm.update}: {alarm.text}"
        self._client.set_tag(self.id, _allowed(f"alarm.{alarm.name}")[:MLFLOW_NAME], text[:MLFLOW_TAG])

    def finish(self, outcome: Outcome) -> None:
        status = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}[outcome]
        self._client.set_terminated(self.id, status=status)


def _allowed(name: str) -> str:
    """A name with the characters that MLflow takes; @ as verl writes it.

    Behind its group its parts are joined by dots: MLflow's files can't have both ``a/b`` and ``a/b/c``.
    """
    allowed = re.sub(r"[^/\w.\- :]", "_", re.sub(r"/+", "/", name.replace("@", "_at_"))).strip("/.")
    group, slash, rest = allowed.partition("/")
    return f"{group}{slash}{rest.replace('/', '.')}" or "_"


class Tensorboard(Library):
    """Event files in tensorboard/samples, a run of TensorBoard's own: the others are rewound when a run resumes."""

    id = "tensorboard"

    def __init__(self, run: Delivery) -> None:
        super().__init__(TensorBoardTracker("samples", run.place.parents[1] / "tensorboard"))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Nothing: the run has written them."""

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        rows = []
        for index, sample in enumerate(samples):
            file = file_of(sample)
            output = output_of(sample) if file is None else f"{SAMPLES}/{index}"
            score = "missing" if sample.reward is None else f"{sample.reward:.4g}"
            row = {"input": sample.prompt, "output": output, "score": score, "note": sample.note}
            rows.append("\n\n".join(f"**{name}**\n\n{indent(text, CODE)}" for name, text in row.items() if text))
            files = {} if file is None else {f"{SAMPLES}/{index}": file}
            images = [shown for shown in sendable(sample.shown) if FILES[shown.suffix] == "image"]
            files |= {f"val/shown/{index}-{place}": shown for place, shown in enumerate(images)}
            for tag, shown in files.items():
                self._show(step, tag, shown)
        self.tracker.log({GENERATIONS: "\n\n---\n\n".join(rows)}, step=step)

    def log_alarm(self, alarm: Raised) -> None:
        text = f"**{title_of(alarm)}**\n\n{indent(alarm.text, CODE)}"
        self.tracker.log({f"alarms/{alarm.name}": text}, step=alarm.update)

    def _show(self, step: int, tag: str, file: Path) -> None:
        """A file as it is; a clip as a GIF."""
        kind = import_module("tensorboard.compat.proto.summary_pb2").Summary
        content = gif(file) if FILES[file.suffix] == "clip" else file.read_bytes()
        if FILES[file.suffix] == "sound":
            with wave.open(str(file), "rb") as sound:
                value = kind.Value(tag=tag, audio=kind.Audio(
                    sample_rate=sound.getframerate(), num_channels=sound.getnchannels(),
                    length_frames=sound.getnframes(), encoded_audio_string=content, content_type="audio/wav",
                ))  # fmt: skip
        else:
            with Image.open(io.BytesIO(content)) as image:
                value = kind.Value(tag=tag, image=kind.Image(
                    height=image.height, width=image.width, colorspace=3, encoded_image_string=content,  # RGB
                ))  # fmt: skip
        self.tracker.writer.file_writer.add_summary(kind(value=[value]), step)


LIBRARIES: dict[str, type[Any]] = {
    "wandb": Wandb, "swanlab": Swanlab, "mlflow": Mlflow, "trackio": Trackio, "clearml": Clearml,
    "tensorboard": Tensorboard,
}  # fmt: skip
