"""The named sets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.data.records import read_records
from burnish.data.sets import compositions, reading
from burnish.data.sets.archives import Archives
from burnish.utils.errors import UserError
from burnish.utils.hub_data import HubData
from burnish.utils.paths import resolve

FOLDER = Path("data")  # where sets are written unless said otherwise, and where recipes look for them
GITHUB = "https://raw.githubusercontent.com"
FLOW_GRPO = "yifan123/flow_grpo/c7bb5fee2ef663eee08393759c8cb8a0e027f5e3/dataset"
GENEVAL = "burnish:prompts/geneval.jsonl"

Rows = Iterable[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Split:
    """Records of a set, from one of these places."""

    github: str = ""  # owner/name/commit/path of a text file
    hub: HubData | None = None
    shipped: str = ""
    made: Callable[[], Rows] | None = None
    archives: Archives | None = None
    read: Callable[[Any], Iterator[dict[str, Any]]] | None = None  # the text, or the rows of the hub, as records
    count: int | None = None  # records that there are to be, where that is known

    @property
    def where(self) -> str:
        """Where it comes from, for messages."""
        if self.archives is not None:
            return f"{self.archives.hub.name} ({self.archives.folder}) of the Hugging Face hub"
        if self.hub is not None:
            return f"{self.hub.path} of the Hugging Face hub"
        if self.github:
            return f"{GITHUB}/{self.github}"
        return self.shipped or "rules in Burnish"


@dataclass(frozen=True, kw_only=True)
class NamedSet:
    """A set with its splits; the last one is for evaluation."""

    what: str
    licence: str
    splits: dict[str, Split]

    @property
    def recipe(self) -> str:
        """A quickstart that reads records like these."""
        seen = any(split.hub is not None or split.archives is not None for split in self.splits.values())
        return "vlm_quickstart" if seen else "quickstart"


def shipped_rows(path: str) -> Iterator[dict[str, Any]]:
    """Records that ship with Burnish."""
    yield from (record.values for record in read_records(resolve(path)))


def _video_r1(*, held_out: bool) -> Split:
    """Questions about videos of NExT-QA in Video-R1's list, of which every twentieth is held out."""

    def keep(number: int) -> bool:
        return (number % 20 == 19) == held_out

    hub = HubData("Video-R1/Video-R1-data", None, "train")
    return Split(archives=Archives(hub, "Video-R1-260k.json", "NeXT-QA", reading.video_r1, keep))


def _github(path: str, read: Callable[[str], Iterator[dict[str, Any]]], count: int | None = None) -> Split:
    return Split(github=path, read=read, count=count)


def _hub(name: str, split: str, read: Callable[[Rows], Iterator[dict[str, Any]]], count: int | None = None) -> Split:
    return Split(hub=HubData(name, None, split), read=read, count=count)


SETS: dict[str, NamedSet] = {
    "geneval": NamedSet(
        what="GenEval's 553 prompts about objects, and 50,000 others by the same rules to train on",
        licence="MIT",
        splits={
            "train": Split(made=lambda: compositions.compositions(shipped_rows(GENEVAL)), count=compositions.COUNT),
            "test": Split(shipped=GENEVAL, count=553),
        },
    ),
    "geneval2": NamedSet(
        what="GenEval 2's 800 prompts with questions about each",
        licence="CC BY-NC 4.0: not for commercial use",
        splits={
            "test": _github(
                "facebookresearch/GenEval2/c088ab7f65a38ce87f2c5d0ae28bf65bd5ba37b0/geneval2_data.jsonl",
                reading.geneval2,
                800,
            ),
        },
    ),
    "ocr": NamedSet(
        what="Flow-GRPO's prompts with words to be drawn",
        licence="MIT",
        splits={
            "train": _github(f"{FLOW_GRPO}/ocr/train.txt", reading.ocr),
            "test": _github(f"{FLOW_GRPO}/ocr/test.txt", reading.ocr, 1018),
        },
    ),
    "pickscore": NamedSet(
        what="prompts of Pick-a-Pic's users, in Flow-GRPO's choice",
        licence="none stated; what users typed, some of it not safe for work",
        splits={
            "train": _github(f"{FLOW_GRPO}/pickscore/train.txt", reading.lines),
            "test": _github(f"{FLOW_GRPO}/pickscore/test.txt", reading.lines, 2048),
        },
    ),
    "parti": NamedSet(
        what="PartiPrompts, 1,632 by category",
        licence="Apache-2.0",
        splits={
            "test": _github(
                "google-research/parti/2c99f6652cbc7f0d0441aa91f4c7e7055bcb0071/PartiPrompts.tsv", reading.parti, 1632
            ),
        },
    ),
    "dpg": NamedSet(
        what="DPG-Bench's 1,065 long prompts with questions about each",
        licence="Apache-2.0",
        splits={
            "test": _github(
                "TencentQQGYLab/ELLA/025f650e9b36b9603d606042635d98da09e870de/dpg_bench/dpg_bench.csv",
                reading.dpg,
                1065,
            ),
        },
    ),
    "drawbench": NamedSet(
        what="DrawBench's 200 prompts",
        licence="none stated",
        splits={"test": _github("NVlabs/DiffusionNFT/main/dataset/drawbench/test.txt", reading.drawbench)},
    ),
    "geometry3k": NamedSet(
        what="Geometry3K: problems with a figure and a number as the answer",
        licence="MIT",
        splits={
            "train": _hub("hiyouga/geometry3k", "train", reading.geometry3k, 2101),
            "test": _hub("hiyouga/geometry3k", "test", reading.geometry3k, 601),
        },
    ),
    "mathvista-mini": NamedSet(
        what="MathVista's 1,000 questions of testmini",
        licence="CC BY-SA 4.0",
        splits={"test": _hub("AI4Math/MathVista", "testmini", reading.mathvista, 1000)},
    ),
    "mmmu-val": NamedSet(
        what="MMMU's 900 questions for validation",
        licence="Apache-2.0",
        splits={"test": _hub("lmms-lab/MMMU", "validation", reading.mmmu, 900)},
    ),
    "chartqa": NamedSet(
        what="ChartQA's 2,500 questions for testing",
        licence="GPL-3.0",
        splits={"test": _hub("lmms-lab/ChartQA", "test", reading.chartqa, 2500)},
    ),
    "nextqa": NamedSet(
        what="NExT-QA's videos with questions of several choices, as Video-R1 lists them; every twentieth is test",
        licence="as Video-R1's data card and NExT-QA state it",
        splits={"train": _video_r1(held_out=False), "test": _video_r1(held_out=True)},
    ),
    "refcoco": NamedSet(
        what="RefCOCO: the box of what an expression refers to. Its train split is on the hub without pictures, so "
        "train is its val here, and test its testA",
        licence="pictures of COCO, of Flickr's users under terms of their own",
        splits={
            "train": _hub("lmms-lab/RefCOCO", "val", reading.refcoco, 8811),
            "test": _hub("lmms-lab/RefCOCO", "testA", reading.refcoco, 1975),
        },
    ),
}

_PREPARED = re.compile(r"data/([\w-]+)/(\w+)\.jsonl")


def named_by(path: str) -> str | None:
    """The name of the set of which this is a file as ``burnish data prepare NAME`` writes it, if it is one."""
    found = _PREPARED.fullmatch(path.replace("\\", "/"))
    known = found is not None and found[1] in SETS and found[2] in SETS[found[1]].splits
    return found[1] if found is not None and known else None


def prepared(name: str) -> Path:
    """The test file of a set that ``burnish data prepare NAME`` has written, or that ships with Burnish.

    Raises:
        UserError: there is none; the message names the command.
    """
    path, found = FOLDER / name / "test.jsonl", SETS[name].splits["test"]
    if path.is_file():
        return path
    if found.shipped:
        return resolve(found.shipped)
    raise UserError(f"{path} is not there; write it with: burnish data prepare {name}")
