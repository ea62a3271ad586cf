"""A run's folder that grows as a run's does, and what each tracker's library left in it, read back."""

import json
import shutil
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from burnish.alarms.record import Raised
from burnish.config import load
from burnish.config.run_folder import RunFolder
from burnish.hooks.log import Lines, MetricsLog
from burnish.hooks.trackers import Trackers
from burnish.utils.video import clip_format, encode_clip, encode_sound

KINDS = {0: "image", 3: "clip", 6: "sound", 9: "response"}  # of samples, by the update that is validated
SAID = "<b>dark_share</b> rose from 0.120 to 0.480"
RAISED = Raised("dark_share", "drift", 3, SAID, update=4).record()
ALARMS = {4: RAISED, 7: {"update": 7, "over": "dark_share"}, 9: RAISED | {"update": 9}}  # by update


def validate(folder: RunFolder, update: int) -> None:
    """Leave what a validation leaves: images, clips, sounds, or responses about an image, of two prompts."""
    media, kind = folder.validation(update) / "pictures", KINDS[update]
    media.mkdir(parents=True)
    records: list[dict[str, Any]] = []
    for number in range(2):
        stem = f"{number:03d}-00"
        about = {"prompt": f"prompt {number}", "index": number, "sample": 0, "note": "read", "components": {}}
        about["reward"] = None if number else update / 4
        if kind == "image":
            Image.new("RGB", (24, 16), (200, 0, 0)).save(media / f"{stem}.png")
            about["file"] = f"{stem}.png"
        elif kind == "clip":
            about["file"] = f"{stem}.{clip_format()}"
            (media / about["file"]).write_bytes(encode_clip(np.full((3, 16, 24, 3), 99, np.uint8), 4))
        elif kind == "sound":
            about["file"] = f"{stem}.wav"
            (media / f"{stem}.wav").write_bytes(encode_sound(np.zeros((1, 800), np.float32), 8000))
        else:
            Image.new("RGB", (8, 8)).save(media / f"{number:03d}-0.png")
            about |= {"response": f"**five** <b>{number}</b>", "images": [f"{number:03d}-0.png"]}
        records.append(about)
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder.validation(update) / "samples.jsonl").write_text(lines)


def track(
    path: Path,
    updates: Sequence[int],
    options: Sequence[str],
    *,
    resumed_at: int | None = None,
    finished: bool = True,
    wait: float = 60.0,
) -> None:
    """Run hooks over updates, of which every third is validated."""
    last = max(updates, default=resumed_at or 0)
    given = [*options, f"trackers.wait={wait}", f"output_dir={path}", f"steps={max(last, 1) if finished else 99}"]
    config = load("quickstart", given)
    folder = RunFolder(path)
    folder.begin(config, resumed_at=resumed_at)
    metrics = MetricsLog(folder, resumed_at=resumed_at)
    trackers = Trackers(config, folder, lambda: False, resumed_at=resumed_at)
    alarms = Lines(folder.alarms)
    alarms.begin(resumed_at or 0)
    for hook in (metrics, trackers):
        hook.start(resumed_at or 0)
    for update in updates:
        values = {"actor/loss": update / 8, "actor/nothing": float("nan")}
        if update in KINDS:
            shutil.rmtree(folder.validation(update), ignore_errors=True)
            validate(folder, update)
            values |= {"val-core/x/reward/mean@1": update / 4}
        if update in ALARMS:
            alarms.write(ALARMS[update])
        for hook in (metrics, trackers):
            hook(update, dict(values))
    for hook in (metrics, trackers):
        hook.finish()
    for closing in (trackers, metrics):
        closing.close()
    folder.close()


def wandb_history(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Rows of all offline runs in a folder, in order, each with the run's id."""
    rows = []
    for name, record in wandb_records(path):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            found = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
            rows.append((name, found))
    return rows


def wandb_records(path: Path) -> Iterator[tuple[str, Any]]:
    """Records of all offline runs in a folder, in order, each with the run's id."""
    for file in sorted(path.glob("trackers/wandb/wandb/offline-run-*/*.wandb")):
        deadline = time.monotonic() + 60
        while not (records := _wandb_file(file)) or records[-1].WhichOneof("record_type") != "exit":
            assert time.monotonic() < deadline, "W&B writes the end of a file a moment after its run is finished"
            time.sleep(0.05)
        for record in records:
            yield file.stem.rpartition("-")[2], record


def _wandb_file(file: Path) -> list[Any]:
    """Records of a file; none of one that is being written."""
    from google.protobuf.message import DecodeError
    from wandb.proto import wandb_internal_pb2

    try:
        return [wandb_internal_pb2.Record.FromString(content) for content in _leveldb(file.read_bytes())]
    except DecodeError:
        return []


def _leveldb(content: bytes) -> Iterator[bytes]:
    """Records of LevelDB's log format behind a header of seven bytes."""
    place, whole = 7, b""
    while place + 7 <= len(content):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a full record, or the last part of one
            yield whole
            whole = b""


def swanlab_records(path: Path) -> list[tuple[str, Any]]:
    """Records of all offline runs in a folder, in order, each with the run's id."""
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    rows = []
    for file in sorted(path.glob("trackers/swanlab/run-*/*.swanlab")):
        reader = DataStoreReader()
        reader.open(file)
        for content in reader:
            record = Record()
            record.ParseFromString(content)
            rows.append((file.stem.removeprefix("run-"), record))
        reader.close()
    return rows
