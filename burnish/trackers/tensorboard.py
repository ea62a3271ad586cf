"""Samples for TensorBoard, beside the curves that every run writes for it anyway."""

from __future__ import annotations

import time
import wave
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter

from burnish.trackers.base import ALARMS, GENERATIONS, SAMPLES, About, Notice, Sample
from burnish.trackers.media import gif, kind_of, picture
from burnish.utils.feed_process import Outcome

RGB = 3  # TensorBoard's number of that colour space


class Tensorboard:
    """Event files in tensorboard/samples, a run of TensorBoard's own: the others are rewound when a run resumes."""

    def __init__(self, about: About) -> None:
        self.id, self.url = "tensorboard", None
        folder = about.folder.parents[1] / "tensorboard" / "samples"
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"events.out.tfevents.{time.time_ns()}.samples").open("xb")
        self._records = RecordWriter(self._file)
        self._write(Event(file_version="brain.Event:2"))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Nothing: the run has written them."""

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        values = [_text(GENERATIONS, _table(samples))]
        for number, one in enumerate(samples):
            if one.file is not None:
                values.append(_media(f"{SAMPLES}/{number}", one.file))
            values += [
                _media(f"val/shown/{number}-{place}", file)
                for place, file in enumerate(one.shown) if kind_of(file) == "picture"
            ]  # fmt: skip
        for value in values:
            self._write(Event(step=step, summary=Summary(value=[value])))
        self._file.flush()

    def alarm(self, notice: Notice) -> None:
        said = f"**{notice.title}**\n\n{_verbatim(notice.said)}"
        value = _text(f"{ALARMS}/{notice.name}", said)
        self._write(Event(step=notice.update, summary=Summary(value=[value])))
        self._file.flush()

    def close(self, outcome: Outcome) -> None:
        self._file.close()

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())


def _media(tag: str, file: Path) -> Any:
    kind = kind_of(file)
    if kind == "sound":
        with wave.open(str(file), "rb") as opened:
            rate, channels, length = opened.getframerate(), opened.getnchannels(), opened.getnframes()
        sound = Summary.Audio(
            sample_rate=rate, num_channels=channels, length_frames=length,
            encoded_audio_string=file.read_bytes(), content_type="audio/wav",
        )  # fmt: skip
        return Summary.Value(tag=tag, audio=sound)
    if kind == "clip":
        content = gif(file)
        width, height = int.from_bytes(content[6:8], "little"), int.from_bytes(content[8:10], "little")
    else:
        content = file.read_bytes()
        width, height = picture(file).size
    return Summary.Value(
        tag=tag, image=Summary.Image(height=height, width=width, colorspace=RGB, encoded_image_string=content)
    )


def _table(samples: Sequence[Sample]) -> str:
    """A table in Markdown, indented so that what models say is shown as it is."""
    parts = []
    for number, one in enumerate(samples):
        made = one.text if one.file is None else f"{SAMPLES}/{number}"
        score = "missing" if one.score is None else f"{one.score:.4g}"
        said = {"input": one.prompt, "output": made or "", "score": score, "note": one.note}
        parts.append("\n\n".join(f"**{name}**\n\n{_verbatim(value)}" for name, value in said.items() if value))
    return "\n\n---\n\n".join(parts)


def _text(tag: str, markdown: str) -> Any:
    text = TensorProto(
        dtype=DT_STRING, string_val=[markdown.encode()],
        tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
    )  # fmt: skip
    about = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    return Summary.Value(tag=tag, metadata=about, tensor=text)


def _verbatim(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
