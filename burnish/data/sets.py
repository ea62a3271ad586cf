"""Named sets of prompts and questions that recipes and suites use: where each comes from, and how it is written.

Records become lines of JSON, pictures and videos files beside them, and SOURCE.txt says where all of it comes from.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from burnish.data import published
from burnish.data.records import read_records, rows_of
from burnish.utils.disk import write_atomically, writing
from burnish.utils.errors import UserError
from burnish.utils.http import HttpError, request
from burnish.utils.hub import HubData
from burnish.utils.json_text import parse_json
from burnish.utils.paths import resolve

FOLDER = Path("data")  # where sets are written unless said otherwise, and where recipes look for them
GITHUB = "https://raw.githubusercontent.com"
FLOW_GRPO = "yifan123/flow_grpo/c7bb5fee2ef663eee08393759c8cb8a0e027f5e3/dataset"
VIDEOS = "Video-R1/Video-R1-data"
GENEVAL = "burnish:prompts/geneval.jsonl"
LARGEST = 64 << 20  # bytes of a file that is fetched
PATIENCE = 300.0  # seconds for one
KINDS = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg", b"RIFF": "webp", b"GIF8": "gif", b"BM": "bmp"}
_PREPARED = re.compile(r"data/([\w-]+)/(\w+)\.jsonl")

Rows = Iterable[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Split:
    """Records of a set."""

    source: str = "rules in Burnish"  # for people
    read: Callable[[Path], Rows]  # into a folder, where pictures and videos may be written
    seen: bool = False  # whether its records are questions about pictures or videos
    count: int | None = None  # records that there are to be, where that is known


@dataclass(frozen=True, kw_only=True)
class NamedSet:
    """A set with its splits; the last one is for evaluation."""

    what: str
    licence: str
    splits: dict[str, Split]

    @property
    def recipe(self) -> str:
        """A quickstart that reads records like these."""
        return "vlm_quickstart" if any(split.seen for split in self.splits.values()) else "quickstart"


def shipped(path: str) -> Iterator[dict[str, Any]]:
    """Records that ship with Burnish."""
    yield from (record.values for record in read_records(resolve(path)))


def _github(path: str, read: Callable[[str], Rows], count: int | None = None) -> Split:
    """Of a text, owner/name/commit/path."""
    return Split(source=f"{GITHUB}/{path}", read=lambda folder: read(_fetched(path)), count=count)


def _hub(name: str, split: str, read: Callable[[Rows], Rows], count: int | None = None) -> Split:
    """Of the rows of a split of the hub."""

    def rows(folder: Path) -> Rows:
        hub = HubData(name, None, split)
        return read(rows_of(hub.load(), hub.path))

    return Split(source=f"{name}@{split} of the Hugging Face hub", read=rows, seen=True, count=count)


def _nextqa(*, held_out: bool) -> Split:
    """Questions about videos of NExT-QA in Video-R1's list, of which every twentieth is held out."""
    source = f"{VIDEOS} (NeXT-QA) of the Hugging Face hub"
    return Split(source=source, read=partial(_with_videos, held_out=held_out), seen=True)


def _with_videos(target: Path, *, held_out: bool) -> Iterator[dict[str, Any]]:
    """Questions with their videos, which are written out of the archives beside the list."""
    found = HubData(VIDEOS, None, "train").download(["Video-R1-260k.json", "NeXT-QA/*.zip"])
    archives = [zipfile.ZipFile(path) for path in sorted((found / "NeXT-QA").glob("*.zip"))]
    places = {f"NeXT-QA/{name}": archive for archive in archives for name in archive.namelist()}
    rows = map(published.video_r1, parse_json((found / "Video-R1-260k.json").read_bytes()))
    known = (row for row in rows if row is not None and row["videos"][0] in places)
    for number, row in enumerate(known):
        if (number % 20 == 19) == held_out:
            name = row["videos"][0].removeprefix("NeXT-QA/")
            with writing(target):
                written = places[row["videos"][0]].extract(name, target / "videos")  # nothing leads out of there
            yield row | {"videos": [Path(written).relative_to(target).as_posix()]}
    for archive in archives:
        archive.close()


SETS: dict[str, NamedSet] = {
    "geneval": NamedSet(
        what="GenEval's 553 prompts about objects, and 50,000 others by the same rules to train on",
        licence="MIT",
        splits={
            "train": Split(read=lambda folder: published.compositions(shipped(GENEVAL)), count=published.COUNT),
            "test": Split(source=GENEVAL, read=lambda folder: shipped(GENEVAL), count=553),
        },
    ),
    "geneval2": NamedSet(
        what="GenEval 2's 800 prompts with questions about each",
        licence="CC BY-NC 4.0: not for commercial use",
        splits={
            "test": _github(
                "facebookresearch/GenEval2/c088ab7f65a38ce87f2c5d0ae28bf65bd5ba37b0/geneval2_data.jsonl",
                published.geneval2,
                800,
            ),
        },
    ),
    "ocr": NamedSet(
        what="Flow-GRPO's prompts with words to be drawn",
        licence="MIT",
        splits={
            "train": _github(f"{FLOW_GRPO}/ocr/train.txt", published.ocr),
            "test": _github(f"{FLOW_GRPO}/ocr/test.txt", published.ocr, 1018),
        },
    ),
    "pickscore": NamedSet(
        what="prompts of Pick-a-Pic's users, in Flow-GRPO's choice",
        licence="none stated; what users typed, some of it not safe for work",
        splits={
            "train": _github(f"{FLOW_GRPO}/pickscore/train.txt", published.lines),
            "test": _github(f"{FLOW_GRPO}/pickscore/test.txt", published.lines, 2048),
        },
    ),
    "parti": NamedSet(
        what="PartiPrompts, 1,632 by category",
        licence="Apache-2.0",
        splits={
            "test": _github(
                "google-research/parti/2c99f6652cbc7f0d0441aa91f4c7e7055bcb0071/PartiPrompts.tsv", published.parti, 1632
            ),
        },
    ),
    "dpg": NamedSet(
        what="DPG-Bench's 1,065 long prompts with questions about each",
        licence="Apache-2.0",
        splits={
            "test": _github(
                "TencentQQGYLab/ELLA/025f650e9b36b9603d606042635d98da09e870de/dpg_bench/dpg_bench.csv",
                published.dpg,
                1065,
            ),
        },
    ),
    "drawbench": NamedSet(
        what="DrawBench's 200 prompts",
        licence="none stated",
        splits={"test": _github("NVlabs/DiffusionNFT/main/dataset/drawbench/test.txt", published.drawbench)},
    ),
    "geometry3k": NamedSet(
        what="Geometry3K: problems with a figure and a number as the answer",
        licence="MIT",
        splits={
            "train": _hub("hiyouga/geometry3k", "train", published.geometry3k, 2101),
            "test": _hub("hiyouga/geometry3k", "test", published.geometry3k, 601),
        },
    ),
    "mathvista-mini": NamedSet(
        what="MathVista's 1,000 questions of testmini",
        licence="CC BY-SA 4.0",
        splits={"test": _hub("AI4Math/MathVista", "testmini", published.mathvista, 1000)},
    ),
    "mmmu-val": NamedSet(
        what="MMMU's 900 questions for validation",
        licence="Apache-2.0",
        splits={"test": _hub("lmms-lab/MMMU", "validation", published.mmmu, 900)},
    ),
    "chartqa": NamedSet(
        what="ChartQA's 2,500 questions for testing",
        licence="GPL-3.0",
        splits={"test": _hub("lmms-lab/ChartQA", "test", published.chartqa, 2500)},
    ),
    "nextqa": NamedSet(
        what="NExT-QA's videos with questions of several choices, as Video-R1 lists them; every twentieth is test",
        licence="as Video-R1's data card and NExT-QA state it",
        splits={"train": _nextqa(held_out=False), "test": _nextqa(held_out=True)},
    ),
    "refcoco": NamedSet(
        what="RefCOCO: the box of what an expression refers to. Its train split is on the hub without pictures, so "
        "train is its val here, and test its testA",
        licence="pictures of COCO, of Flickr's users under terms of their own",
        splits={
            "train": _hub("lmms-lab/RefCOCO", "val", published.refcoco, 8811),
            "test": _hub("lmms-lab/RefCOCO", "testA", published.refcoco, 1975),
        },
    ),
}


def named_by(path: str) -> str | None:
    """The name of the set of which this is a file as ``burnish data prepare NAME`` writes it, if it is one."""
    found = _PREPARED.fullmatch(path.replace("\\", "/"))
    return found[1] if found and found[1] in SETS and found[2] in SETS[found[1]].splits else None


def prepared(name: str) -> Path:
    """The test file of a set that ``burnish data prepare NAME`` has written, or that ships with Burnish.

    Raises:
        UserError: there is none; the message names the command.
    """
    path = FOLDER / name / "test.jsonl"
    if path.is_file():
        return path
    if name == "geneval":
        return resolve(GENEVAL)
    raise UserError(f"{path} is not there; write it with: burnish data prepare {name}")


def prepare(name: str, folder: Path = FOLDER) -> list[tuple[Path, int]]:
    """Write a set below a folder, in one of its name.

    Returns:
        Each file with its number of records.

    Raises:
        UserError: something can't be had, is not what was expected, or would replace other data.
    """
    chosen, target = SETS[name], folder / name
    written = []
    notes = [f"{name}: {chosen.what}", f"licence: {chosen.licence}"]
    for split_name, split in chosen.splits.items():
        path = target / f"{split_name}.jsonl"
        rows = _rows(split, target)
        if split.count is not None and len(rows) != split.count:
            raise UserError(
                f"{split.source} has {len(rows)} records, but {split.count} were expected: it is not the {name} that "
                "Burnish knows; look at it, and read it by its own keys as data.train_files"
            )
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        if path.exists() and path.read_bytes() != content:
            raise UserError(f"{path} is there already with other content; move it away, or give another --output")
        _write(path, content)
        written.append((path, len(rows)))
        notes.append(f"{path.name}: {split.source}, sha256 {hashlib.sha256(content).hexdigest()}")
    _write(target / "SOURCE.txt", ("\n".join(notes) + "\n").encode())
    return written


def _rows(split: Split, target: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    try:
        for row in split.read(target):
            pictures = [_picture(value, target) for value in row.get("images") or ()]
            rows.append(row | {"images": pictures} if pictures else row)
    except UserError:
        raise
    except Exception as error:  # it may be anything
        raise UserError(
            f"{split.source} is not as its makers published it, after record {len(rows)}: {type(error).__name__}: "
            f"{error}; look at it, and read it by its own keys as data.train_files"
        ) from error
    return rows


def _fetched(path: str) -> str:
    url = f"{GITHUB}/{path}"
    try:
        return request("GET", url, content=None, seconds=PATIENCE, largest=LARGEST).decode()
    except (HttpError, UnicodeDecodeError) as error:
        raise UserError(
            f"{url} can't be fetched: {error}; run the same command where it can be reached, and copy the folder that "
            "it writes"
        ) from None


def _picture(value: Any, target: Path) -> str:
    """An encoded picture as a file that is named by its content."""
    content = value["bytes"]
    kind = next((kind for head, kind in KINDS.items() if content.startswith(head)), "img")
    name = f"pictures/{hashlib.sha256(content).hexdigest()[:20]}.{kind}"
    if not (target / name).exists():
        _write(target / name, content)
    return name


def _write(path: Path, content: bytes) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
