"""Published sets as records of Burnish: each function reads a set in the form that its makers gave it.

And prompts about objects, their number, colours and positions, by the rules by which GenEval's were made.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from burnish.utils.json_text import parse_json

Row = dict[str, Any]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
BOX = "Give the bounding box of {} as [x1, y1, x2, y2] in pixels of the picture."
_CHOSEN = re.compile(r"<answer>\s*([A-H])\s*</answer>")
_PLACE = re.compile(r"<image (\d)>")


def lines(text: str) -> Iterator[Row]:
    """A prompt a line."""
    yield from ({"prompt": line.strip()} for line in text.splitlines() if line.strip())


def ocr(text: str) -> Iterator[Row]:
    """A prompt a line, with the words to be drawn in double quotes."""
    for row in lines(text):
        quoted = re.search(r'"([^"]+)"', row["prompt"])
        yield row | ({"answer": quoted[1]} if quoted else {}) | {"data_source": "ocr"}


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
    for line in text.splitlines():
        if line.strip():
            values = parse_json(line)
            extra = {name: values[name] for name in ("vqa_list", "skills", "atom_count") if name in values}
            yield {"prompt": values["prompt"], "data_source": f"{values.get('atom_count', '')} atoms".strip(),
                   "extra_info": extra}  # fmt: skip


def drawbench(text: str) -> Iterator[Row]:
    """A prompt a line."""
    yield from (row | {"data_source": "drawbench"} for row in lines(text))


def geometry3k(rows: Iterable[Row]) -> Iterator[Row]:
    """A problem with its place for the picture, and a number as its answer."""
    for row in rows:
        yield {"prompt": row["problem"], "images": row["images"], "answer": str(row["answer"]),
               "data_source": "geometry3k", "label": "number"}  # fmt: skip


def mathvista(rows: Iterable[Row]) -> Iterator[Row]:
    """A question with choices, or with a number or text as its answer."""
    for row in rows:
        question, choices, answer = row["question"].strip(), row.get("choices") or [], str(row["answer"])
        if unit := row.get("unit"):
            question += f" (unit: {unit})"
        label = "choice"
        if choices:
            question, answer = with_choices(question, choices), LETTERS[choices.index(row["answer"])]
        else:
            label = "text" if row.get("answer_type") in ("text", "list") else "number"
        metadata = row.get("metadata") or {}
        yield {
            "prompt": f"<image>{question}", "images": [row["decoded_image"]], "answer": answer, "label": label,
            "data_source": metadata.get("task") or "mathvista",
            "extra_info": {"pid": row["pid"], "precision": row.get("precision"), "skills": metadata.get("skills")},
        }  # fmt: skip


def mmmu(rows: Iterable[Row]) -> Iterator[Row]:
    """A question with places for up to seven pictures, with choices mostly; those are lists written as text."""
    for row in rows:
        choices = [str(one) for one in ast.literal_eval(row["options"])]
        question = with_choices(row["question"].strip(), choices) if choices else row["question"].strip()
        places = [int(place) for place in _PLACE.findall(question)]
        yield {
            "prompt": _PLACE.sub("<image>", question), "images": [row[f"image_{place}"] for place in places],
            "answer": str(row["answer"]), "label": "choice" if choices else "text",
            "data_source": subject(row["id"]), "extra_info": {"id": row["id"], "subfield": row.get("subfield")},
        }  # fmt: skip


def subject(name: str) -> str:
    """The subject of a question of MMMU: validation_Art_Theory_7 is of Art_Theory."""
    return name.partition("_")[2].rpartition("_")[0] or "mmmu"


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


def chartqa(rows: Iterable[Row]) -> Iterator[Row]:
    """A question about a chart; answers are numbers, years or words."""
    for row in rows:
        answer = row["answer"]
        answer = str(answer[0] if isinstance(answer, list) else answer)
        yield {
            "prompt": f"<image>{row['question'].strip()}", "images": [row["image"]], "answer": answer,
            "label": "number" if re.fullmatch(r"-?[\d,.]+%?", answer) else "text",
            "data_source": str(row.get("type") or "chartqa"),
        }  # fmt: skip


def refcoco(rows: Iterable[Row]) -> Iterator[Row]:
    """The first expression that refers to an object, and the object's box: there x, y, width and height."""
    for row in rows:
        x, y, width, height = (float(one) for one in row["bbox"])
        box = [round(one) for one in (x, y, x + width, y + height)]
        yield {
            "prompt": f"<image>{BOX.format(row['answer'][0].strip())}", "images": [row["image"]],
            "answer": json.dumps(box), "label": "box", "data_source": "refcoco",
            "extra_info": {"question_id": row["question_id"], "file_name": row["file_name"]},
        }  # fmt: skip


def with_choices(question: str, choices: Iterable[str]) -> str:
    """A question with its choices below it, a letter each."""
    listed = "\n".join(f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False))
    return f"{question}\n{listed}\nAnswer with the letter of the right choice."


# the classes of COCO, in their order; three have a longer name than there
OBJECTS = """
person,bicycle,car,motorcycle,airplane,bus,train,truck,boat,traffic light,fire hydrant,stop sign,parking meter,bench,
bird,cat,dog,horse,sheep,cow,elephant,bear,zebra,giraffe,backpack,umbrella,handbag,tie,suitcase,frisbee,skis,snowboard,
sports ball,kite,baseball bat,baseball glove,skateboard,surfboard,tennis racket,bottle,wine glass,cup,fork,knife,spoon,
bowl,banana,apple,sandwich,orange,broccoli,carrot,hot dog,pizza,donut,cake,chair,couch,potted plant,bed,dining table,
toilet,tv,laptop,computer mouse,tv remote,computer keyboard,cell phone,microwave,oven,toaster,sink,refrigerator,book,
clock,vase,scissors,teddy bear,hair drier,toothbrush
""".replace("\n", "").split(",")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
POSITIONS = ("left of", "right of", "above", "below")
NUMBERS = {2: "two", 3: "three", 4: "four"}
# shares of the tasks in training, as Flow-GRPO's paper has them (arXiv:2505.05470)
SHARES = {"position": 7, "counting": 5, "color_attr": 3, "colors": 1, "two_object": 1}
COUNT = 50_000
SEED = 0


class _Draw:
    """Choices by a seed, of Python's generator alone, whose ``random`` never changes."""

    def __init__(self, seed: int) -> None:
        self._draws = random.Random(seed)

    def one(self, values: Any) -> Any:
        return values[int(self._draws.random() * len(values))]

    def two(self, values: Any) -> tuple[Any, Any]:
        first = self.one(values)
        return first, self.one([value for value in values if value != first])


def compositions(left_out: Iterable[Row], count: int = COUNT, seed: int = SEED) -> Iterator[Row]:
    """Prompts with what has to be in their pictures, some of them several times; the same for the same seed.

    Args:
        left_out: rows none of which is given, in whatever order their objects are.
        count: of prompts.
        seed: of the draws.
    """
    taken = {_content(row["extra_info"]) for row in left_out}
    draw = _Draw(seed)
    tasks = [task for task, share in SHARES.items() for _ in range(share)]
    for _ in range(count):
        task = draw.one(tasks)
        info, prompt = TASKS[task](draw)
        while _content({"tag": task, **info}) in taken:
            info, prompt = TASKS[task](draw)
        yield {"prompt": f"a photo of {prompt}", "data_source": task, "extra_info": {"tag": task, **info}}


def _two(draw: _Draw) -> tuple[Row, str]:
    one, other = draw.two(OBJECTS)
    include = [{"class": one, "count": 1}, {"class": other, "count": 1}]
    return {"include": include}, f"{_a(one)} and {_a(other)}"


def _counting(draw: _Draw) -> tuple[Row, str]:
    name, number = draw.one(OBJECTS), draw.one(tuple(NUMBERS))
    info = {"include": [{"class": name, "count": number}], "exclude": [{"class": name, "count": number + 1}]}
    return info, f"{NUMBERS[number]} {name}{'es' if name.endswith('s') else 's'}"


def _colours(draw: _Draw) -> tuple[Row, str]:
    name, colour = draw.one(OBJECTS[1:]), draw.one(COLOURS)  # nobody is red
    return {"include": [{"class": name, "count": 1, "color": colour}]}, f"{_a(colour)} {name}"


def _position(draw: _Draw) -> tuple[Row, str]:
    (one, other), where = draw.two(OBJECTS), draw.one(POSITIONS)
    include = [{"class": other, "count": 1}, {"class": one, "count": 1, "position": [where, 0]}]
    return {"include": include}, f"{_a(one)} {where} {_a(other)}"


def _attributes(draw: _Draw) -> tuple[Row, str]:
    (one, other), (first, second) = draw.two(OBJECTS[1:]), draw.two(COLOURS)
    include = [{"class": one, "count": 1, "color": first}, {"class": other, "count": 1, "color": second}]
    return {"include": include}, f"{_a(first)} {one} and {_a(second)} {other}"


TASKS: dict[str, Callable[[_Draw], tuple[Row, str]]] = {
    "position": _position, "counting": _counting, "color_attr": _attributes, "colors": _colours, "two_object": _two,
}  # fmt: skip


def _a(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _content(info: Row) -> str:
    """What a prompt asks for, whatever the order of its objects."""
    return repr((info["tag"], sorted(repr(sorted(one.items())) for one in info["include"])))
