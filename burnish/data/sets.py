"""Named sets of prompts and questions that recipes and suites use: where each comes from, and how it is written.

Each is read in the form that its makers gave it, and prompts about objects are made by the rules by which GenEval's
were. Records become lines of JSON, images and videos files beside them, and SOURCE.txt says where all of it is from.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from burnish.data.records import read_records, rows_of
from burnish.rewards.images.geneval import CLASSES, COLOURS, POSITIONS
from burnish.rewards.images.ocr import quoted
from burnish.utils.disk import write_atomically, writing
from burnish.utils.errors import UserError
from burnish.utils.http import HttpError, request
from burnish.utils.hub import HubData
from burnish.utils.json_text import parse_json
from burnish.utils.paths import resolve
from burnish.utils.reading import understood

FOLDER = Path("data")  # where sets are written unless said otherwise, and where recipes look for them
GITHUB = "https://raw.githubusercontent.com"
FLOW_GRPO = "yifan123/flow_grpo/c7bb5fee2ef663eee08393759c8cb8a0e027f5e3/dataset"
VIDEOS = "Video-R1/Video-R1-data"
GENEVAL = "burnish:prompts/geneval.jsonl"
LARGEST = 64 << 20  # bytes of a file that is fetched
PATIENCE = 300.0  # seconds for one
KINDS = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg", b"RIFF": "webp", b"GIF8": "gif", b"BM": "bmp"}
_PREPARED = re.compile(r"data/([\w-]+)/(\w+)\.jsonl")

Row = dict[str, Any]
Rows = Iterable[Row]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
BOX = "Give the bounding box of {} as [x1, y1, x2, y2] in pixels of the picture."
_CHOSEN = re.compile(r"<answer>\s*([A-H])\s*</answer>")
_PLACE = re.compile(r"<image (\d)>")


def lines(text: str, **beside: str) -> Iterator[Row]:
    """A prompt a line, with what every record has beside."""
    yield from ({"prompt": line.strip()} | beside for line in text.splitlines() if line.strip())


def ocr(text: str) -> Iterator[Row]:
    """A prompt a line, with the words to be drawn in double quotes."""
    for row in lines(text):
        answer = quoted(row["prompt"])
        yield row | ({"answer": answer} if answer else {}) | {"data_source": "ocr"}


def parti(text: str) -> Iterator[Row]:
    """PartiPrompts.tsv, whose quotation marks are characters like others."""
    names, *rest = (line.split("\t") for line in text.splitlines() if line.strip())
    for cells in rest:
        values = dict(zip(names, cells, strict=False))
        yield {
            "prompt": values["Prompt"].strip(), "data_source": values["Category"],
            "extra_info": {"challenge": values["Challenge"]},
        }  # fmt: skip


def dpg(text: str) -> Iterator[Row]:
    """dpg_bench.csv, which repeats the prompt for each of its questions."""
    found: dict[str, Row] = {}
    for values in csv.DictReader(io.StringIO(text, newline="")):
        row = found.setdefault(values["item_id"], {"prompt": values["text"].strip(), "data_source": "dpg"})
        asked = {"id": values["proposition_id"], "dependency": values["dependency"], "category":
                 values["category_broad"], "question": values["question_natural_language"]}  # fmt: skip
        row.setdefault("extra_info", {"item_id": values["item_id"], "questions": []})["questions"].append(asked)
    yield from found.values()


def geneval2(text: str) -> Iterator[Row]:
    """geneval2_data.jsonl: questions about each prompt with their answers."""
    for values in (parse_json(row["prompt"]) for row in lines(text)):
        extra = {name: values[name] for name in ("vqa_list", "skills", "atom_count") if name in values}
        yield {"prompt": values["prompt"], "data_source": f"{values.get('atom_count', '')} atoms".strip(),
               "extra_info": extra}  # fmt: skip


def geometry3k(row: Row) -> Row:
    """A problem with its place for the image, and a number as its answer."""
    return {"prompt": row["problem"], "images": row["images"], "answer": str(row["answer"]),
           "data_source": "geometry3k", "label": "number"}  # fmt: skip


def mathvista(row: Row) -> Row:
    """A question with choices, or with a number or text as its answer."""
    question, choices, answer = row["question"].strip(), row.get("choices") or [], str(row["answer"])
    if unit := row.get("unit"):
        question += f" (unit: {unit})"
    label = "text" if row.get("answer_type") in ("text", "list") else "number"
    if choices:
        label, answer = "choice", LETTERS[choices.index(row["answer"])]
        question = with_choices(question, choices)
    metadata = row.get("metadata") or {}
    return {
        "prompt": f"<image>{question}", "images": [row["decoded_image"]], "answer": answer, "label": label,
        "data_source": metadata.get("task") or "mathvista",
        "extra_info": {"pid": row["pid"], "precision": row.get("precision"), "skills": metadata.get("skills")},
    }  # fmt: skip


def mmmu(row: Row) -> Row:
    """A question with places for up to seven images, with choices mostly; those are lists written as text."""
    choices = [str(one) for one in ast.literal_eval(row["options"])]
    question = with_choices(row["question"].strip(), choices) if choices else row["question"].strip()
    places = [int(place) for place in _PLACE.findall(question)]
    subject = row["id"].partition("_")[2].rpartition("_")[0]  # validation_Art_Theory_7 is of Art_Theory
    return {
        "prompt": _PLACE.sub("<image>", question), "images": [row[f"image_{place}"] for place in places],
        "answer": str(row["answer"]), "label": "choice" if choices else "text",
        "data_source": subject or "mmmu", "extra_info": {"id": row["id"], "subfield": row.get("subfield")},
    }  # fmt: skip


def video_r1(row: Row) -> Row | None:
    """A question of several choices about a video, of Video-R1's list; others have no use here."""
    letter = _CHOSEN.search(row.get("solution") or "")
    if row.get("data_type") != "video" or row.get("problem_type") != "multiple choice" or letter is None:
        return None
    choices = "\n".join(str(one).strip() for one in row["options"])
    return {
        "prompt": f"<video>{row['problem'].strip()}\n{choices}\nAnswer with the letter of the right choice.",
        "videos": [row["path"].removeprefix("./")], "answer": letter[1], "label": "choice", "data_source": "nextqa",
        "extra_info": {"problem_id": row["problem_id"]},
    }  # fmt: skip


def chartqa(row: Row) -> Row:
    """A question about a chart; answers are numbers, years or words."""
    answer = row["answer"]
    answer = str(answer[0] if isinstance(answer, list) else answer)
    return {
        "prompt": f"<image>{row['question'].strip()}", "images": [row["image"]], "answer": answer,
        "label": "number" if re.fullmatch(r"-?[\d,.]+%?", answer) else "text",
        "data_source": str(row.get("type") or "chartqa"),
    }  # fmt: skip


def refcoco(row: Row) -> Row:
    """The first expression that refers to an object, and the object's box: there x, y, width and height."""
    x, y, width, height = (float(one) for one in row["bbox"])
    box = [round(one) for one in (x, y, x + width, y + height)]
    return {
        "prompt": f"<image>{BOX.format(row['answer'][0].strip())}", "images": [row["image"]],
        "answer": json.dumps(box), "label": "box", "data_source": "refcoco",
        "extra_info": {"question_id": row["question_id"], "file_name": row["file_name"]},
    }  # fmt: skip


def with_choices(question: str, choices: Iterable[str]) -> str:
    """A question with its choices below it, a letter each."""
    listed = "\n".join(f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False))
    return f"{question}\n{listed}\nAnswer with the letter of the right choice."


NUMBERS = {2: "two", 3: "three", 4: "four"}
# shares of the tasks in training, as Flow-GRPO's paper has them (arXiv:2505.05470)
SHARES = {"position": 7, "counting": 5, "color_attr": 3, "colors": 1, "two_object": 1}
COUNT = 50_000
SEED = 0


def compositions(left_out: Iterable[Row]) -> Iterator[Row]:
    """Prompts with what has to be in their images, some of them several times; always the same ones.

    None asks for what one of ``left_out`` does, in whatever order of its objects.
    """
    taken = {_content(row["extra_info"]) for row in left_out}
    draw = Random(SEED)
    tasks = [task for task, share in SHARES.items() for _ in range(share)]
    for _ in range(COUNT):
        task = _one(draw, tasks)
        info, prompt = TASKS[task](draw)
        while _content({"tag": task, **info}) in taken:
            info, prompt = TASKS[task](draw)
        yield {"prompt": f"a photo of {prompt}", "data_source": task, "extra_info": {"tag": task, **info}}


def _one(draw: Random, values: Any) -> Any:
    """One of some values, by the only method of Python's generator that never changes."""
    return values[int(draw.random() * len(values))]


def _pair(draw: Random, values: Any) -> tuple[Any, Any]:
    first = _one(draw, values)
    return first, _one(draw, [value for value in values if value != first])


def _two(draw: Random) -> tuple[Row, str]:
    one, other = _pair(draw, CLASSES)
    include = [{"class": one, "count": 1}, {"class": other, "count": 1}]
    return {"include": include}, f"{_a(one)} and {_a(other)}"


def _counting(draw: Random) -> tuple[Row, str]:
    name, number = _one(draw, CLASSES), _one(draw, tuple(NUMBERS))
    info = {"include": [{"class": name, "count": number}], "exclude": [{"class": name, "count": number + 1}]}
    return info, f"{NUMBERS[number]} {name}{'es' if name.endswith('s') else 's'}"


def _colours(draw: Random) -> tuple[Row, str]:
    name, colour = _one(draw, CLASSES[1:]), _one(draw, COLOURS)  # nobody is red
    return {"include": [{"class": name, "count": 1, "color": colour}]}, f"{_a(colour)} {name}"


def _position(draw: Random) -> tuple[Row, str]:
    (one, other), where = _pair(draw, CLASSES), _one(draw, POSITIONS)
    include = [{"class": other, "count": 1}, {"class": one, "count": 1, "position": [where, 0]}]
    return {"include": include}, f"{_a(one)} {where} {_a(other)}"


def _attributes(draw: Random) -> tuple[Row, str]:
    (one, other), (first, second) = _pair(draw, CLASSES[1:]), _pair(draw, COLOURS)
    include = [{"class": one, "count": 1, "color": first}, {"class": other, "count": 1, "color": second}]
    return {"include": include}, f"{_a(first)} {one} and {_a(second)} {other}"


TASKS: dict[str, Callable[[Random], tuple[Row, str]]] = {
    "position": _position, "counting": _counting, "color_attr": _attributes, "colors": _colours, "two_object": _two,
}  # fmt: skip


def _a(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _content(info: Row) -> str:
    """What a prompt asks for, whatever the order of its objects."""
    return repr((info["tag"], sorted(repr(sorted(one.items())) for one in info["include"])))


@dataclass(frozen=True, kw_only=True)
class Split:
    """Records of a set."""

    source: str = "rules in Burnish"  # for people
    read: Callable[[Path], Rows]  # into a folder, where images and videos may be written
    seen: bool = False  # whether its records are questions about images or videos
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


def shipped() -> Iterator[Row]:
    """GenEval's own prompts, which ship with Burnish."""
    yield from (record.values for record in read_records(resolve(GENEVAL)))


def _github(path: str, read: Callable[..., Rows], count: int | None = None, **beside: str) -> Split:
    """Of a text, owner/name/commit/path."""
    return Split(source=f"{GITHUB}/{path}", read=lambda folder: read(_fetched(path), **beside), count=count)


def _hub(name: str, split: str, read: Callable[[Row], Row], count: int | None = None) -> Split:
    """Of the rows of a split of the hub, each by itself."""

    def rows(folder: Path) -> Rows:
        hub = HubData(name, None, split)
        return map(read, rows_of(hub.load(), hub.path))

    return Split(source=f"{name}@{split} of the Hugging Face hub", read=rows, seen=True, count=count)


def _nextqa(*, held_out: bool) -> Split:
    """Questions about videos of NExT-QA in Video-R1's list, of which every twentieth is held out."""
    source = f"{VIDEOS} (NeXT-QA) of the Hugging Face hub"
    return Split(source=source, read=partial(_with_videos, held_out=held_out), seen=True)


def _with_videos(target: Path, *, held_out: bool) -> Iterator[Row]:
    """Questions with their videos, which are written out of the archives beside the list."""
    found = HubData(VIDEOS, None, "train").download(["Video-R1-260k.json", "NeXT-QA/*.zip"])
    archives = [zipfile.ZipFile(path) for path in sorted((found / "NeXT-QA").glob("*.zip"))]
    places = {f"NeXT-QA/{name}": archive for archive in archives for name in archive.namelist()}
    rows = map(video_r1, parse_json((found / "Video-R1-260k.json").read_bytes()))
    known = (row for row in rows if row is not None and row["videos"][0] in places)
    for number, row in enumerate(known):
        if (number % 20 == 19) == held_out:
            name = row["videos"][0].removeprefix("NeXT-QA/")
            with writing(target):
                written = places[row["videos"][0]].extract(name, target / "videos")  # nothing leads out of there
            yield row | {"videos": [Path(written).relative_to(target).as_posix()]}


SETS: dict[str, NamedSet] = {
    "geneval": NamedSet(
        what="GenEval's 553 prompts about objects, and 50,000 others by the same rules to train on",
        licence="MIT",
        splits={
            "train": Split(read=lambda folder: compositions(shipped()), count=COUNT),
            "test": Split(source=GENEVAL, read=lambda folder: shipped(), count=553),
        },
    ),
    "geneval2": NamedSet(
        what="GenEval 2's 800 prompts with questions about each",
        licence="CC BY-NC 4.0: not for commercial use",
        splits={
            "test": _github(
                "facebookresearch/GenEval2/c088ab7f65a38ce87f2c5d0ae28bf65bd5ba37b0/geneval2_data.jsonl", geneval2, 800
            ),
        },
    ),
    "ocr": NamedSet(
        what="Flow-GRPO's prompts with words to be drawn",
        licence="MIT",
        splits={
            "train": _github(f"{FLOW_GRPO}/ocr/train.txt", ocr),
            "test": _github(f"{FLOW_GRPO}/ocr/test.txt", ocr, 1018),
        },
    ),
    "pickscore": NamedSet(
        what="prompts of Pick-a-Pic's users, in Flow-GRPO's choice",
        licence="none stated; what users typed, some of it not safe for work",
        splits={
            "train": _github(f"{FLOW_GRPO}/pickscore/train.txt", lines),
            "test": _github(f"{FLOW_GRPO}/pickscore/test.txt", lines, 2048),
        },
    ),
    "parti": NamedSet(
        what="PartiPrompts, 1,632 by category",
        licence="Apache-2.0",
        splits={
            "test": _github(
                "google-research/parti/2c99f6652cbc7f0d0441aa91f4c7e7055bcb0071/PartiPrompts.tsv", parti, 1632
            ),
        },
    ),
    "dpg": NamedSet(
        what="DPG-Bench's 1,065 long prompts with questions about each",
        licence="Apache-2.0",
        splits={
            "test": _github(
                "TencentQQGYLab/ELLA/025f650e9b36b9603d606042635d98da09e870de/dpg_bench/dpg_bench.csv", dpg, 1065
            ),
        },
    ),
    "drawbench": NamedSet(
        what="DrawBench's 200 prompts",
        licence="none stated",
        splits={"test": _github("NVlabs/DiffusionNFT/main/dataset/drawbench/test.txt", lines, data_source="drawbench")},
    ),
    "geometry3k": NamedSet(
        what="Geometry3K: problems with a figure and a number as the answer",
        licence="MIT",
        splits={
            "train": _hub("hiyouga/geometry3k", "train", geometry3k, 2101),
            "test": _hub("hiyouga/geometry3k", "test", geometry3k, 601),
        },
    ),
    "mathvista-mini": NamedSet(
        what="MathVista's 1,000 questions of testmini",
        licence="CC BY-SA 4.0",
        splits={"test": _hub("AI4Math/MathVista", "testmini", mathvista, 1000)},
    ),
    "mmmu-val": NamedSet(
        what="MMMU's 900 questions for validation",
        licence="Apache-2.0",
        splits={"test": _hub("lmms-lab/MMMU", "validation", mmmu, 900)},
    ),
    "chartqa": NamedSet(
        what="ChartQA's 2,500 questions for testing",
        licence="GPL-3.0",
        splits={"test": _hub("lmms-lab/ChartQA", "test", chartqa, 2500)},
    ),
    "nextqa": NamedSet(
        what="NExT-QA's videos with questions of several choices, as Video-R1 lists them; every twentieth is test",
        licence="as Video-R1's data card and NExT-QA state it",
        splits={"train": _nextqa(held_out=False), "test": _nextqa(held_out=True)},
    ),
    "refcoco": NamedSet(
        what="RefCOCO: the box of what an expression refers to. Its train split is on the hub without images, so "
        "train is its val here, and test its testA",
        licence="images of COCO, of Flickr's users under terms of their own",
        splits={
            "train": _hub("lmms-lab/RefCOCO", "val", refcoco, 8811),
            "test": _hub("lmms-lab/RefCOCO", "testA", refcoco, 1975),
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
        rows: list[Row] = []
        with understood(f"{split.source} is not as its makers published it"):
            for row in split.read(target):
                images = [_image(value, target) for value in row.get("images") or ()]
                rows.append(row | {"images": images} if images else row)
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


def _fetched(path: str) -> str:
    url = f"{GITHUB}/{path}"
    try:
        return request("GET", url, content=None, seconds=PATIENCE, largest=LARGEST).decode()
    except (HttpError, UnicodeDecodeError) as error:
        raise UserError(
            f"{url} can't be fetched: {error}; run the same command where it can be reached, and copy the folder that "
            "it writes"
        ) from None


def _image(value: Any, target: Path) -> str:
    """An encoded image as a file that is named by its content."""
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
