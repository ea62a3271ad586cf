"""Every form of record that a prompt or a question may have, and what is made of it."""

import base64
import re

import numpy as np
import pytest
from PIL import Image

from burnish.types.media import Media
from burnish.types.prompt import Part, Prompt
from tests.support.records import image_file, prompts, questions, shade, write
from tests.support.shown import ROOT
from tests.support.tiny_run import burnish

PAGE = (ROOT / "docs" / "data_formats.md").read_text()
EXAMPLES = re.findall(r"^`([a-z]\w*\.\w+)`.*?\n```\w+\n(.*?)```\n```text\n(.*?)```", PAGE, re.S | re.M)


@pytest.fixture
def folder(tmp_path):
    """With a dark image and a light one, each of 6 x 8 pixels."""
    (tmp_path / "dark.png").write_bytes(image_file(10))
    (tmp_path / "light.png").write_bytes(image_file(200))
    return tmp_path


def user(content):
    return {"role": "user", "content": content}


def said(prompt):
    """Its turns, each as its role and its text with markers of its images."""
    marks = {"image": "<image>"}
    return [(turn.role, "".join(marks.get(part.kind, part.text) for part in turn.parts)) for turn in prompt.turns]


def asked(folder, *records, options=()):
    return questions(write(folder / "data.jsonl", *records), *options)


@pytest.mark.parametrize(("name", "content", "expected"), EXAMPLES, ids=[name for name, _, _ in EXAMPLES])
def test_an_example_of_the_page_of_forms_is_read_as_it_says(name, content, expected, tmp_path, monkeypatch):
    assert len(EXAMPLES) == PAGE.count("```\n```text") == 13
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(content)
    Image.new("RGB", (8, 8)).save("a.png")
    named = f"{name}:sums" if name.endswith(".py") else name
    said = burnish("data", "show", named, "--recipe", "vlm_quickstart", "-n", "1").out
    shown, _, _ = said.replace(f"{tmp_path}/", "").partition("\n\n")
    kept = [line for line in shown.splitlines() if not line.startswith("  for rewards: ")]
    assert kept == expected.rstrip("\n").splitlines()


@pytest.mark.parametrize("ask", [prompts, questions])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_line_of_text_and_a_row_of_a_table_are_records_with_their_lines(ask, mark, tmp_path):
    (tmp_path / "a.txt").write_bytes(mark + "a cat\r\n\r\n  # of cats  \n\t\nein Käse\u2028und Brot\n".encode())
    found = ask(tmp_path / "a.txt")
    assert [one.text for one in found] == ["a cat", "# of cats", "ein Käse\u2028und Brot"]
    assert [one.where for one in found] == [f"{tmp_path}/a.txt:{line}" for line in (1, 3, 5)]
    text = b'prompt,answer,data_source\n"a cat, ""big""",7,x\n\n"two\nlines",,\nlast,0,y\n'
    (tmp_path / "a.csv").write_bytes(mark + text)
    found = ask(tmp_path / "a.csv")
    assert [(one.text, one.answer, one.source) for one in found] == [
        ('a cat, "big"', "7", "x"), ("two\nlines", None, "default"), ("last", "0", "y")
    ]  # fmt: skip
    assert [one.where for one in found] == [f"{tmp_path}/a.csv:{line}" for line in (2, 4, 6)]


def test_a_record_is_read_under_the_usual_keys(tmp_path):
    path = write(
        tmp_path / "a.jsonl", {"text": "a dog", "negative_prompt": "blur", "answer": "dog", "data_source": "animals"},
        {"caption": "five", "ground_truth": 5, "extra_info": {"mine": [1, 2]}}, "",
        {"prompt": "null is nothing", "negative_prompt": None, "answer": None, "data_source": None},
    )  # fmt: skip
    assert prompts(path) == [
        Prompt(text="a dog", negative="blur", answer="dog", source="animals"),
        Prompt(text="five", answer="5", extra='{"extra_info": {"mine": [1, 2]}}'), Prompt(text="null is nothing"),
    ]  # fmt: skip
    found = asked(
        tmp_path, {"prompt": "a", "answer": "1"}, {"question": "a", "solution": "2"},
        {"problem": "a", "reward_model": {"ground_truth": "3", "style": "rule"}},
        {"query": "a", "reference": 4.5, "label": "geo3k_rule"}, {"messages": [user("a")], "level": 2},
        {"prompt": "a", "reward_model": "a judge"},
    )  # fmt: skip
    assert [prompt.answer for prompt in found] == ["1", "2", "3", "4.5", None, None]
    assert [prompt.label for prompt in found] == [None, None, None, "geo3k_rule", None, None]
    assert (found[4].info, found[4].uid) == ({"level": 2}, Prompt(text="a").uid)


def test_options_name_other_keys(folder):
    record = {"task": {"text": "red"}, "prompt": "no", "source": "dark.png", "image": "light.png", "solution": "x",
              "label": "left", "depth": "light.png", "extra_info": {"hint": "h"}, "masks": ["dark.png"]}  # fmt: skip
    path = write(folder / "data.jsonl", record)
    named = ["data.prompt_key=task.text", "data.images_key=source", "data.answer_key=solution"]
    more = ["data.extra_keys=[label]", "data.input_keys=[depth,masks]", "data.label_key=solution"]
    (prompt,) = prompts(path, *named, *more)
    own = {name: value for name, value in record.items() if name not in ("source", "image", "depth", "masks")}
    assert (prompt.text, prompt.answer, prompt.info, prompt.label) == ("red", "x", own, "x")
    assert prompt.images == (Media.file(folder / "dark.png"),)
    assert prompt.inputs[0] == ("depth", Media.file(folder / "light.png"))
    assert (prompt.inputs[1][0], prompt.inputs[1][1].kind) == ("masks", "video"), "the only one of several"
    (question,) = questions(
        path, *named[:2], "data.answer_key=label", "data.extra_keys=[extra_info.hint]", "data.system_prompt=Be brief."
    )
    assert (question.answer, question.label, question.info["extra_info.hint"]) == ("left", None, "h")
    assert [message.role for message in question.messages] == ["system", "user"]
    (folder / "a.txt").write_text("a dog\n")
    for ask in (prompts, questions):
        assert ask(folder / "a.txt", "data.prompt_key=task.text")[0].text == "a dog"
    assert questions(folder / "a.txt", "data.template='{{ prompt }}?'")[0].text == "a dog?"
    assert questions(folder / "a.txt", "data.template='Again?'")[0].text == "Again?"
    calling = {"role": "assistant", "content": "b", "tool_calls": [{"name": "f", "arguments": {}}]}
    (chat,) = asked(folder, {"prompt": [user("a"), calling, user("c")], "word": "d"},
                    options=["data.template='{{ content }} {{ word }}'"])  # fmt: skip
    assert said(chat) == [("user", "a"), ("assistant", "b"), ("user", "c d")]


def test_a_prompt_s_number_is_that_of_its_content(folder):
    """All random streams of a sample begin with it."""
    assert Prompt(text="a cat 42").uid == "48837888596cf699"
    shown, encoded = {"prompt": "<image>?", "image": "dark.png"}, base64.b64encode(image_file(10)).decode()
    records = [shown, shown | {"image": encoded}, shown | {"image": "light.png"}, shown | {"label": "math"},
               shown | {"extra_info": {"a": 1}}]  # fmt: skip
    one, same, *others = asked(folder, *records)
    assert one.uid == same.uid
    assert len({one.uid, *(other.uid for other in others)}) == 4
    (silent,) = asked(folder, {"prompt": "a cat", "data_source": "animals"})
    assert silent.uid == Prompt(text="a cat", source="animals").uid


def verl_rows():
    shared = {"data_source": "edits", "prompt": [{"role": "system", "content": "You draw."}, user("a cat")],
              "negative_prompt": None, "images": [], "extra_info": {"index": 4, "source": None},
              "reward_model": {"style": "model", "ground_truth": "cat"}}  # fmt: skip
    shown = {"prompt": [user("<image>\nmake it red")], "negative_prompt": [user("<image>\n ")],
             "images": [{"bytes": image_file(10), "path": None}],
             "extra_info": {"index": 3, "source": {"bytes": b"\xff"}}}  # fmt: skip
    return [shared | shown, shared]


def test_tables_as_verl_has_them(tmp_path):
    path = tmp_path / "train.parquet"
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.Table.from_pylist(verl_rows()), path)
    edit, cat = prompts(path)
    assert (edit.text, edit.negative.strip(), edit.answer, edit.source) == ("make it red", "", "cat", "edits")
    assert shade(edit.images[0]) == 10
    assert edit.info["extra_info"] == {"index": 3, "source": {}}
    assert edit.info["reward_model"] == {"ground_truth": "cat", "style": "model"}  # every key that the user wrote
    assert "images" not in edit.info
    assert edit.where == f"{path}, row 1"
    assert (cat.text, cat.negative, cat.images) == ("a cat", "", ())
    first, second = questions(path, "data.prompt_key=prompt")
    assert said(first) == [("user", "<image>\nmake it red")]
    assert [turn.role for turn in second.turns] == ["system", "user"]


def test_images_come_in_many_shapes_and_parts_may_bring_theirs(folder):
    encoded, pixels = base64.b64encode(image_file(10)).decode(), [[[10] * 3] * 8] * 6
    ways = ["dark.png", {"path": "dark.png"}, {"bytes": None, "path": "dark.png"}, encoded, {"base64": encoded},
            pixels, {"array": pixels}, [[[10]] * 8] * 6]  # fmt: skip
    for key in ("image", "images"):
        found = asked(folder, *({"prompt": "<image>?", key: [one] if key == "images" else one} for one in ways))
        assert [shade(one.images[0]) for one in found] == [10] * len(ways)
    (folder / "mine.py").write_text(
        "import numpy as np, PIL.Image\nimage = PIL.Image.new('L', (8, 6), 10)\nframes = np.stack([image] * 2)\n"
        "def made():\n    yield {'prompt': '<image>?', 'image': image}\n"
        "    yield {'prompt': '<image><image>?', 'images': [np.array(image), image]}\n"
    )
    one, two = questions(folder / "mine.py:made")
    assert [shade(image) for image in (*one.images, *two.images)] == [10] * 3
    (prompt,) = asked(folder, {"images": ["light.png"], "messages": [
        user([{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}}, {"type": "image"}]),
        {"role": "assistant", "content": "Two pictures."}, user([{"type": "image", "image": "dark.png", "text": None}]),
    ]})  # fmt: skip
    assert [shade(image) for image in prompt.images] == [10, 200, 10]
    assert prompt.images[0] == prompt.images[2]


def test_sounds_come_in_many_shapes_and_keep_their_places(folder):
    pytest.importorskip("av")
    from tests.support.sounds import sound_file, tone

    data, words = sound_file("flac", tone()), {"type": "text", "text": "What?"}
    (folder / "tone.flac").write_bytes(data)
    encoded = base64.b64encode(data).decode()
    ways = ["tone.flac", {"path": "tone.flac"}, f"data:audio/flac;base64,{encoded}",
            {"array": tone().tolist(), "sampling_rate": 16000}]  # fmt: skip
    parts = [{"type": "audio_url", "audio_url": {"url": "tone.flac"}},
             {"type": "input_audio", "input_audio": {"data": encoded, "format": "flac"}}]  # fmt: skip
    records = [{"prompt": "<audio>What?", "audio": way} for way in ways]
    records += [{"prompt": [user([part, words])]} for part in parts]
    found = asked(folder, *records)
    for prompt in found:
        assert prompt.messages[0].parts == (Part("audio"), Part("text", "What?"))
        np.testing.assert_allclose(prompt.audios[0].audio(16000), tone(), atol=1 / 16000)
    assert len({prompt.uid for prompt in found}) == 2  # of the file, and of the array
