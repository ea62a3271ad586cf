"""Named sets: what is shipped, made, fetched and read of the hub, and what is refused."""

import io
import json
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from burnish.data import sets
from burnish.data.sets import SETS
from burnish.types.media import Media
from tests.support.http_servers import send, serving
from tests.support.records import image_file, prompts, shade
from tests.support.tiny_run import burnish

NEXT = "Video-R1/Video-R1-data"


def prepare(name, folder, status=0):
    return burnish("data", "prepare", name, "--output", folder, status=status)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_geneval_s_own_prompts_ship_as_they_were_published(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "2 of 553 records" in burnish("data", "show", "geneval", "-n", "2").out
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
}


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


def images(value):
    """An image of one shade, as rows of the hub have it."""
    return {"bytes": image_file(value["shade"]), "path": None} if "shade" in value else value


# of each set: files of GitHub or rows of the hub as they were published, and the records that are made of them
PUBLISHED = json.loads(Path(__file__).with_name("published_sets.json").read_text(), object_hook=images)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_forms_are_understood(github, tmp_path, monkeypatch, name):
    published, written = PUBLISHED[name]
    counted(monkeypatch, name, len(written))
    monkeypatch.chdir(tmp_path)  # where the folder of a name is read in place of the hub's
    if isinstance(published, dict):
        github.files |= published
    else:
        datasets = pytest.importorskip("datasets")
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
        for split in SETS[name].splits.values():
            place, _, part = split.source.partition(" ")[0].partition("@")
            datasets.Dataset.from_list(published).to_parquet(Path(place, "data", f"{part}-00000-of-00001.parquet"))
    prepare(name, "data")
    for path in Path("data", name).glob("*.jsonl"):
        rows = lines(path)
        for row in rows:
            row |= {key: [shade(Media.file(path.parent / one)) for one in row[key]] for key in row if key == "images"}
        assert rows == written
    said = burnish("data", "show", name).out
    assert f"\n{len(written)} of {len(written)} record" in said
    assert ("<image>" in said) == ("images" in written[0]), "by the recipe of its kind"


def test_what_is_not_there_or_is_not_what_it_was_is_named(github, tmp_path):
    def refused(name, *words):
        told = prepare(name, tmp_path, 2).message
        assert [word for word in words if word not in told] == [], told

    github.files["ocr/test.txt"] = "a\nb\nc\n"
    refused("ocr", "ocr/test.txt has 3 records, but 1018")
    github.files["ocr/train.txt"] = b"\xe9"
    refused("ocr", "ocr/train.txt", "can't decode byte 0xe9")
    github.files["PartiPrompts.tsv"] = "Text\tKind\na\tb\n"
    refused("parti", "PartiPrompts.tsv is not as its makers published it", "'Prompt'")
    del github.files["ocr/train.txt"]
    refused("ocr", "ocr/train.txt can't be fetched", "404")
    github.files |= FILES
    (tmp_path / "ocr" / "test.jsonl").write_text("{}")
    refused("ocr", "ocr/test.jsonl is there already with other content", "--output")


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
