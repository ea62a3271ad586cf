"""Named sets: what is shipped, made, fetched and read of the hub, and what is refused."""

import io
import json
import zipfile
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from burnish.data import sets
from burnish.data.sets import SETS
from tests.support.http_servers import send, serving
from tests.support.records import prompts
from tests.support.tiny_run import burnish

NEXT = "Video-R1/Video-R1-data"


def prepare(name, folder, status=0):
    return burnish("data", "prepare", name, "--output", folder, status=status)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_geneval_s_own_prompts_ship_as_they_were_published(tmp_path):
    prepare("geneval", tmp_path)
    found = prompts(tmp_path / "geneval" / "test.jsonl")
    tasks = {"single_object": 80, "two_object": 99, "counting": 80, "colors": 94, "position": 100, "color_attr": 100}
    assert Counter(prompt.source for prompt in found) == tasks
    assert len({prompt.uid for prompt in found}) == 553
    assert [found[i].text for i in (0, 457)] == ["a photo of a bench", "a photo of a pink oven and a green motorcycle"]
    info = found[530].info["extra_info"]
    assert info["include"][0] == {"class": "suitcase", "count": 1, "color": "purple"}


FILES = {
    "ocr/train.txt": 'A sign that says "Open"\n\nA mug with "Tea time" on it\n',
    "ocr/test.txt": 'Neon "Bar"\n' * 1018,
    "PartiPrompts.tsv": 'Prompt\tCategory\tChallenge\tNote\n"hi" on a wall\tArtifacts\tWriting & Symbols\t\n',
    "dpg_bench.csv": "item_id,text,keywords,proposition_id,dependency,category_broad,category_detailed,tuple,"
    "question_natural_language\n"
    'one,"A cat, asleep",,1,0,entity,whole,t,Is there a cat?\none,"A cat, asleep",,2,1,attribute,state,t,Asleep?\n',
    "geneval2_data.jsonl": json.dumps({"prompt": "two cows", "atom_count": 2, "vqa_list": [["How many?", "two"]],
                                       "skills": ["count"]}) + "\n",
}  # fmt: skip


@pytest.fixture
def github(monkeypatch):
    """Loopback in the place of raw.githubusercontent.com, and its files."""
    told = SimpleNamespace(files=dict(FILES))

    def answer(request):
        found = next((text for name, text in told.files.items() if request.path.endswith(name)), None)
        body = b"" if found is None else found if isinstance(found, bytes) else found.encode()
        send(request, 404 if found is None else 200, body)

    with serving(answer) as url:
        monkeypatch.setattr(sets, "GITHUB", url)
        yield told


def counted(monkeypatch, name, count):
    splits = {split: replace(one, count=count) for split, one in SETS[name].splits.items()}
    monkeypatch.setitem(SETS, name, replace(SETS[name], splits=splits))


def test_a_set_is_fetched_and_written_with_where_it_comes_from(github, tmp_path):
    train, test = tmp_path / "ocr" / "train.jsonl", tmp_path / "ocr" / "test.jsonl"
    said = prepare("ocr", tmp_path).out
    assert said.startswith(f"2 records in {train}\n1018 records in {test}\n")
    first, second = prompts(train)
    assert [(one.text, one.answer, one.source) for one in (first, second)] == [
        ('A sign that says "Open"', "Open", "ocr"), ('A mug with "Tea time" on it', "Tea time", "ocr")
    ]  # fmt: skip
    source = (tmp_path / "ocr" / "SOURCE.txt").read_text()
    assert "licence: MIT" in source
    assert "yifan123/flow_grpo/c7bb5fee2ef663eee08393759c8cb8a0e027f5e3/dataset/ocr/train.txt, sha256 " in source
    assert prepare("ocr", tmp_path).out == said, "again, with the same content"


@pytest.mark.parametrize("name", ["parti", "dpg", "geneval2"])
def test_published_forms_are_understood(github, tmp_path, monkeypatch, name):
    counted(monkeypatch, name, 1)
    prepare(name, tmp_path)
    ((prompt,),) = (prompts(path) for path in (tmp_path / name).glob("*.jsonl"))
    text, source, extra = {
        "parti": ('"hi" on a wall', "Artifacts", {"challenge": "Writing & Symbols"}),
        "dpg": ("A cat, asleep", "dpg", None),
        "geneval2": ("two cows", "2 atoms", {"atom_count": 2, "skills": ["count"], "vqa_list": [["How many?", "two"]]}),
    }[name]
    found = prompt.info["extra_info"]
    assert (prompt.text, prompt.source) == (text, source)
    assert found == extra or [one["question"] for one in found["questions"]] == ["Is there a cat?", "Asleep?"]


LETTER = "\nAnswer with the letter of the right choice."


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def video(number, path, **other):
    return {
        "problem_id": number, "problem": f"What is {number}?", "data_type": "video", "problem_type": "multiple choice",
        "options": ["A. one", "B. two"], "solution": "<answer>B</answer>", "path": path,
    } | other  # fmt: skip


def test_questions_whose_videos_are_in_archives_are_written_with_them(hub, tmp_path):
    listed = [video(i, f"./NeXT-QA/v/{i}.mp4") for i in range(40)]
    listed += [
        video(50, "./NeXT-QA/v/absent.mp4"), video(51, "./STAR/v/0.mp4"), video(52, "./NeXT-QA/../../x.mp4"),
        video(53, "./NeXT-QA/v/0.mp4", data_type="image"), video(54, "./NeXT-QA/v/0.mp4", solution="two"),
    ]  # fmt: skip
    halves = [zipped({f"v/{i}.mp4": b"video %d" % i for i in range(*ends)}) for ends in ((0, 20), (20, 40))]
    hub.publish(NEXT, {
        "Video-R1-260k.json": json.dumps(listed).encode(), "NeXT-QA/NeXT-QA_part0.zip": halves[0],
        "NeXT-QA/NeXT-QA_part1.zip": halves[1], "STAR/STAR_part0.zip": zipped({"v/0.mp4": b"other"}),
    })  # fmt: skip
    prepare("nextqa", tmp_path)
    train, test = (lines(tmp_path / "nextqa" / f"{split}.jsonl") for split in ("train", "test"))
    assert [len(train), *(row["extra_info"]["problem_id"] for row in test)] == [38, 19, 39]
    assert train[0] == {
        "prompt": "<video>What is 0?\nA. one\nB. two" + LETTER, "videos": ["videos/v/0.mp4"], "answer": "B",
        "label": "choice", "data_source": "nextqa", "extra_info": {"problem_id": 0},
    }  # fmt: skip
    assert (tmp_path / "nextqa" / "videos" / "v" / "21.mp4").read_bytes() == b"video 21"
    assert len(list((tmp_path / "nextqa").rglob("*.mp4"))) == 40
    assert not any("STAR" in path for _, path, _ in hub.asked if "resolve" in path), "nothing else is downloaded"
    prepare("nextqa", tmp_path)
