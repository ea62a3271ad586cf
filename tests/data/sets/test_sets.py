"""Named sets: what is shipped, made, fetched and read of the hub, and what is refused."""

import io
import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from burnish.data.flow.prompts import read_prompts
from burnish.data.language.prompts import read_questions
from burnish.data.sets import SETS, catalogue, named_by, prepare, prepared, preparing
from burnish.data.sets.compositions import OBJECTS, SHARES, compositions
from burnish.options.language import LanguageDataOptions
from burnish.utils.errors import UserError
from burnish.utils.hub_data import HubData
from tests.support.http_servers import send, serving


def png(level: int = 0) -> dict[str, bytes]:
    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 6), level, np.uint8)).save(buffer, format="PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def test_geneval_s_own_prompts_ship_as_they_were_published():
    prompts = read_prompts(catalogue.GENEVAL)
    tasks = {"single_object": 80, "two_object": 99, "counting": 80, "colors": 94, "position": 100, "color_attr": 100}
    assert Counter(prompt.source for prompt in prompts) == tasks
    assert len({prompt.uid for prompt in prompts}) == 553
    quoted = {  # as they are quoted elsewhere, by their numbers
        0: "a photo of a bench", 1: "a photo of a cow", 2: "a photo of a bicycle",
        457: "a photo of a pink oven and a green motorcycle", 530: "a photo of a purple suitcase and an orange pizza",
    }  # fmt: skip
    assert {number: prompts[number].text for number in quoted} == quoted
    info = prompts[530].info["extra_info"]
    assert info["include"][0] == {"class": "suitcase", "count": 1, "color": "purple"}
    assert prepared("geneval").name == "geneval.jsonl"


def test_prompts_by_geneval_s_rules_are_none_of_its_own():
    own = list(catalogue.shipped_rows(catalogue.GENEVAL))
    made = list(compositions(own, 4000))
    assert made == list(compositions(own, 4000)) != list(compositions(own, 4000, seed=1))
    assert not {row["prompt"] for row in made} & {row["prompt"] for row in own}
    counts = Counter(row["data_source"] for row in made)
    for task, share in SHARES.items():
        assert abs(counts[task] / 4000 - share / sum(SHARES.values())) < 0.03
    assert len(OBJECTS) == 80
    one = next(row for row in made if row["data_source"] == "counting")
    (wanted,), (beyond,) = one["extra_info"]["include"], one["extra_info"]["exclude"]
    assert (beyond["class"], beyond["count"]) == (wanted["class"], wanted["count"] + 1)
    assert all({clause["class"] for clause in row["extra_info"]["include"]} <= set(OBJECTS) for row in made)


FILES = {
    "ocr/train.txt": 'A sign that says "Open"\n\nA mug with "Tea time" on it\n',
    "ocr/test.txt": 'Neon "Bar"\n' * 1018,
    "PartiPrompts.tsv": 'Prompt\tCategory\tChallenge\tNote\n"hi" on a wall\tArtifacts\tWriting & Symbols\t\n' * 1,
    "dpg_bench.csv": "item_id,text,keywords,proposition_id,dependency,category_broad,category_detailed,tuple,"
    "question_natural_language\n"
    'one,"A cat, asleep",,1,0,entity,whole,t,Is there a cat?\none,"A cat, asleep",,2,1,attribute,state,t,Asleep?\n',
    "geneval2_data.jsonl": json.dumps({"prompt": "two cows", "atom_count": 2, "vqa_list": [["How many?", "two"]],
                                       "skills": ["count"]}) + "\n",
}  # fmt: skip


@pytest.fixture
def github(monkeypatch):
    """Loopback in the place of raw.githubusercontent.com; what is asked for, and files that answer otherwise."""
    told = SimpleNamespace(asked=[], files=dict(FILES), status=200)

    def answer(request):
        told.asked.append(request.path)
        found = next((text for name, text in told.files.items() if request.path.endswith(name)), None)
        body = b"" if found is None else found if isinstance(found, bytes) else found.encode()
        send(request, 404 if found is None else told.status, body)

    with serving(answer) as url:
        monkeypatch.setattr(preparing, "GITHUB", url)
        yield told


def counted(monkeypatch, name, count):
    """A set of which so many records are expected."""
    splits = {split: replace(one, count=count) for split, one in SETS[name].splits.items()}
    monkeypatch.setitem(SETS, name, replace(SETS[name], splits=splits))


def test_a_set_is_fetched_and_written_with_where_it_comes_from(github, tmp_path, monkeypatch):
    written = prepare("ocr", tmp_path)
    assert written == [(tmp_path / "ocr" / "train.jsonl", 2), (tmp_path / "ocr" / "test.jsonl", 1018)]
    first, second = read_prompts(str(written[0][0]))
    assert (first.text, first.answer, second.answer, first.source) == ('A sign that says "Open"', "Open", "Tea time",
                                                                       "ocr")  # fmt: skip
    source = (tmp_path / "ocr" / "SOURCE.txt").read_text()
    assert "licence: MIT" in source
    assert "yifan123/flow_grpo/c7bb5fee2ef663eee08393759c8cb8a0e027f5e3/dataset/ocr/train.txt, sha256 " in source
    monkeypatch.setattr(catalogue, "FOLDER", tmp_path)
    assert prepared("ocr") == written[1][0]
    assert prepare("ocr", tmp_path) == written, "again, with the same content"
    github.files["ocr/train.txt"] = "other\n"
    with pytest.raises(UserError, match=r"train.jsonl is there already with other content; move it away"):
        prepare("ocr", tmp_path)


@pytest.mark.parametrize("name", ["parti", "dpg", "geneval2"])
def test_published_forms_are_understood(github, tmp_path, monkeypatch, name):
    counted(monkeypatch, name, 1)
    ((path, _),) = prepare(name, tmp_path)
    (prompt,) = read_prompts(str(path))
    expected = {
        "parti": ('"hi" on a wall', "Artifacts", {"challenge": "Writing & Symbols"}),
        "dpg": ("A cat, asleep", "dpg", None),
        "geneval2": ("two cows", "2 atoms", {"atom_count": 2, "skills": ["count"], "vqa_list": [["How many?", "two"]]}),
    }[name]
    assert (prompt.text, prompt.source) == expected[:2]
    extra = prompt.info["extra_info"]
    assert expected[2] is None or extra == expected[2]
    if name == "dpg":
        assert [one["question"] for one in extra["questions"]] == ["Is there a cat?", "Asleep?"]


def test_what_can_not_be_fetched_names_the_command(github, tmp_path, monkeypatch):
    github.files["ocr/test.txt"] = "a\nb\nc\n"
    with pytest.raises(UserError, match=r"ocr/test.txt has 3 records, but 1018 were expected"):
        prepare("ocr", tmp_path)
    github.files["ocr/train.txt"] = b"\xe9"
    with pytest.raises(UserError, match=r"is not text: byte 0 is not UTF-8"):
        prepare("ocr", tmp_path)
    github.files["PartiPrompts.tsv"] = "Text\tKind\na\tb\n"
    with pytest.raises(UserError, match=r"is not as its makers published it, after record 0: KeyError: 'Prompt'"):
        prepare("parti", tmp_path)
    del github.files["ocr/train.txt"]
    with pytest.raises(UserError, match=r"can't be fetched: status 404.*; where it can be reached, run: burnish data"):
        prepare("ocr", tmp_path)
    monkeypatch.setattr(preparing, "LARGEST", 1000)
    github.files |= {"ocr/train.txt": "a\n" * 1000}
    with pytest.raises(UserError, match="can't be fetched: its reply has more than"):
        prepare("ocr", tmp_path)
    with pytest.raises(UserError, match=r"test.jsonl is not there; write it with: burnish data prepare dpg"):
        prepared("dpg")
    assert (named_by("data/ocr/train.jsonl"), named_by("data/ocr/val.jsonl"), named_by("ocr/train.jsonl")) == (
        "ocr", None, None)  # fmt: skip


ROWS = {
    "geometry3k": [{"images": [png()], "problem": "<image>Find x.", "answer": "6"}],
    "mathvista-mini": [
        {"pid": "1", "question": "How long?", "decoded_image": png(1), "choices": ["2", "4"], "unit": "cm",
         "precision": None, "answer": "4", "answer_type": "text", "metadata": {"task": "geometry", "skills": ["a"]}},
        {"pid": "2", "question": "How many?", "decoded_image": png(2), "choices": [], "unit": None,
         "precision": 1.0, "answer": "1.2", "answer_type": "float", "metadata": {"task": "figure", "skills": []}},
    ],
    "mmmu-val": [{"id": "validation_Art_Theory_7", "question": "Is <image 2> like <image 1>?",
                  "options": "['Yes', 'No']", "image_1": png(1), "image_2": png(2), "answer": "B", "subfield": "Art"}],
    "chartqa": [{"type": "human", "question": "Share?", "answer": "12.5%", "image": png()},
                {"type": "augmented", "question": "Who?", "answer": "Peru", "image": png()}],
    "refcoco": [{"question_id": "1", "image": png(), "question": "?", "answer": ["left cat", "cat"],
                 "bbox": [1.2, 2.0, 3.0, 4.4], "file_name": "a.jpg"}],
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_questions_of_the_hub_are_written_with_their_pictures(tmp_path, monkeypatch, name):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(HubData, "load", lambda self: datasets.Dataset.from_list(ROWS[name]))
    counted(monkeypatch, name, len(ROWS[name]))
    path, _ = prepare(name, tmp_path)[-1]
    found = read_questions(str(path), LanguageDataOptions(train_files=str(path)))
    said = [(one.text, one.answer, one.label, one.source) for one in found]
    assert said == {
        "geometry3k": [("<image>Find x.", "6", "number", "geometry3k")],
        "mathvista-mini": [
            ("<image>How long? (unit: cm)\nA. 2\nB. 4\nAnswer with the letter of the right choice.", "B", "choice",
             "geometry"),
            ("<image>How many?", "1.2", "number", "figure"),
        ],
        "mmmu-val": [("Is <image> like <image>?\nA. Yes\nB. No\nAnswer with the letter of the right choice.", "B",
                      "choice", "Art_Theory")],
        "chartqa": [("<image>Share?", "12.5%", "number", "human"), ("<image>Who?", "Peru", "text", "augmented")],
        "refcoco": [("<image>Give the bounding box of left cat as [x1, y1, x2, y2] in pixels of the picture.",
                     "[1, 2, 4, 6]", "box", "refcoco")],
    }[name]  # fmt: skip
    if name == "mmmu-val":
        assert [np.asarray(image.image())[0, 0, 0] for image in found[0].images] == [2, 1], "in the order of the text"
    assert all((path.parent / "pictures").iterdir())
