import json
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from burnish.data.flow.prompts import read_prompts
from burnish.options.flow import PromptOptions
from burnish.types.media import Media
from burnish.types.rollout import Prompt
from burnish.utils.errors import UserError


def written(tmp_path, content: str | bytes, name: str = "prompts.jsonl"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def refused(path) -> list[str]:
    with pytest.raises(UserError) as caught:
        read_prompts(str(path))
    return str(caught.value).split("\n")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_text_is_one_prompt_a_line_and_nothing_is_a_comment(tmp_path, end, mark):
    content = mark + end.join(["a cat", "", "  # of cats  ", "\t", "ein Käse\u2028und Brot", ""]).encode()
    found = read_prompts(written(tmp_path, content, "prompts.txt"))
    assert found == [
        Prompt(text="a cat"), Prompt(text="# of cats"), Prompt(text="ein Käse\u2028und Brot")
    ]  # fmt: skip


def test_a_record_is_read_under_the_fields_usual_keys(tmp_path):
    records = [
        {"prompt": "a cat"},
        {"text": "a dog", "negative_prompt": "blur", "answer": "dog", "data_source": "animals"},
        {"caption": "five", "ground_truth": 5, "extra_info": {"mine": [1, 2]}},
        {"prompt": "null is nothing", "negative_prompt": None, "answer": None, "data_source": None},
    ]
    found = read_prompts(written(tmp_path, "\n".join(map(json.dumps, records)) + "\n\n"))
    assert found == [
        Prompt(text="a cat"),
        Prompt(text="a dog", negative="blur", answer="dog", source="animals"),
        Prompt(text="five", answer="5", extra='{"extra_info": {"mine": [1, 2]}}'),
        Prompt(text="null is nothing"),
    ]


WRONG = {
    '{"prompt": "a"': "not JSON: .* at column 15",
    "a cat": "not JSON: .* at column 1",
    '["a cat"]': "holds list, not an object",
    '"a cat"': "holds str, not an object",
    "{}": "has no prompt; its keys are none",
    '{"prompt": []}': "has a prompt that is \\[\\]; it must be text or a list of messages",
    '{"prompt": [{"role": "assistant", "content": "a"}]}': "ends with a message of 'assistant'",
    '{"prompt": "a", "answer": "b", "target": "c"}': "set data.answer_key to the one to read",
    '{"prompt": "a", "images": ["nowhere.png"]}': "has a picture '.* that can't be read: No such file",
    '{"prompt": "a", "mask_image": 3}': "has a picture that is 3; it must be a path",
    '{"prompt": "<image> <image>", "images": ["data:,"]}': "can't be decoded",
    '{"promt": "a"}': "has no prompt; its keys are 'promt'",
    '{"prompt": null}': "has no prompt",
    '{"prompt": 3}': "'prompt' is 3; it must be text",
    '{"prompt": [{"role": "user"}]}': "has a message with content None; it must be text",
    '{"prompt": " "}': "has an empty prompt",
    '{"prompt": ""}': "has an empty prompt",
    '{"prompt": "a", "text": "b"}': "has 'prompt' and 'text'; set data.prompt_key to the one to read",
    '{"prompt": "a", "prompt": "b"}': "has 'prompt' twice",
    '{"prompt": "a", "answer": true}': "'answer' is True; it must be text",
    '{"prompt": "a", "negative_prompt": 1}': "'negative_prompt' is 1; it must be text",
    '{"prompt": "\\ud800"}': "half of a surrogate pair",
    "[" * 200_000: "nested too deeply",
}


@pytest.mark.parametrize("line", WRONG, ids=lambda line: line[:40])
def test_a_wrong_line_is_named_with_its_file_and_number(tmp_path, line):
    path = written(tmp_path, f'{{"prompt": "a"}}\n\n{line}\n{{"prompt": "b"}}\n')
    (message,) = refused(path)
    assert re.fullmatch(f"{re.escape(str(path))}:3: .*{WRONG[line]}.*", message), message


@pytest.mark.parametrize("name", ["prompts.txt", "prompts.jsonl"])
def test_what_is_not_utf8_is_named_by_line(tmp_path, name):
    good = b"a" if name.endswith("txt") else b'{"prompt": "a"}'
    path = written(tmp_path, b"\n".join([good, b"caf\xe9", good]), name)
    assert refused(path) == [f"{path}:2: byte 3 is not UTF-8"]


def test_all_problems_are_told_at_once_ten_of_them_in_words(tmp_path):
    path = written(tmp_path, "\n".join(["{}"] * 12 + ['{"prompt": "a"}', "?"]))
    messages = refused(path)
    assert len(messages) == 11
    assert [message.split(": ")[0] for message in messages[:10]] == [f"{path}:{n}" for n in range(1, 11)]
    assert messages[-1] == "and 3 more"


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file_is_refused(tmp_path, content):
    assert "holds no records" in refused(written(tmp_path, content))[0]


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    assert "no such file" in refused(tmp_path / "missing.txt")[0]
    (tmp_path / "folder.txt").mkdir()
    assert "holds no records" in refused(tmp_path / "folder.txt")[0]
    assert "can't be read as prompts; give .txt, .jsonl" in refused(written(tmp_path, "a", "prompts.xlsx"))[0]


PIXELS = np.full((6, 8, 3), 200, np.uint8)


def pictures(folder, *names):
    for i, name in enumerate(names):
        Image.fromarray(PIXELS - 40 * i).save(folder / name)


def test_pictures_that_a_prompt_begins_from_are_part_of_what_it_is(tmp_path):
    pictures(tmp_path, "a.png", "b.png", "mask.png", "last.png")
    records = [
        {"prompt": "make it red", "image": "a.png"},
        {"prompt": "make it red", "images": ["b.png"]},
        {"prompt": "join them", "images": ["a.png", "b.png"], "negative_prompt": "blur"},
        {"prompt": "fill", "image": "a.png", "mask_image": "mask.png", "last_image": "last.png"},
        {"prompt": "follow", "control_video": [["a.png", "b.png"]][0]},
    ]
    found = read_prompts(written(tmp_path, "\n".join(map(json.dumps, records))))
    a, b, mask, last = (Media.file(tmp_path / name) for name in ("a.png", "b.png", "mask.png", "last.png"))
    assert [prompt.images for prompt in found] == [(a,), (b,), (a, b), (a,), ()]
    assert found[3].inputs == (("last_image", last), ("mask_image", mask))
    (name, video) = found[4].inputs[0]
    assert (name, video.kind, len(video.frames)) == ("control_video", "video", 2)
    assert len({prompt.uid for prompt in found}) == 5
    assert found[0].uid != Prompt(text="make it red").uid
    swapped = replace(found[3], inputs=(("last_image", mask), ("mask_image", last)))
    assert swapped.uid != found[3].uid


def test_a_folder_of_pictures_with_instructions(tmp_path):
    pictures(tmp_path, "a.png", "b.png")
    (tmp_path / "a.txt").write_text("make it red\n")
    with pytest.raises(UserError, match=r"b.png: has no caption; write its prompt into b.txt"):
        read_prompts(str(tmp_path))
    (tmp_path / "b.txt").write_text("make it blue")
    first, second = read_prompts(str(tmp_path))
    assert (first.text, first.images) == ("make it red", (Media.file(tmp_path / "a.png"),))
    assert second.where == str(tmp_path / "b.png")


def chat(text, system="You draw."):
    return [{"role": "system", "content": system}, {"role": "user", "content": text}]


def rows(folder):
    """Records as data sets for verl have them."""
    pictures(folder, "a.png")
    data = (folder / "a.png").read_bytes()
    return [
        {
            "data_source": "edits",
            "prompt": chat("<image>\nmake it red"),
            "negative_prompt": chat("<image>\n "),
            "images": [{"bytes": data, "path": None}],
            "reward_model": {"style": "model", "ground_truth": "red"},
            "extra_info": {"index": 3, "source": {"bytes": data}},
        },
        {
            "data_source": "edits",
            "prompt": chat("a cat"),
            "negative_prompt": None,
            "images": [],
            "reward_model": {"style": "model", "ground_truth": "cat"},
            "extra_info": {"index": 4, "source": None},
        },
    ]


@pytest.mark.parametrize("kind", ["parquet", "saved"])
def test_tables_as_verl_has_them(tmp_path, kind):
    arrow = pytest.importorskip("pyarrow")
    table = arrow.Table.from_pylist(rows(tmp_path))
    path = tmp_path / f"train.{kind}"
    if kind == "parquet":
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    else:
        pytest.importorskip("datasets").Dataset(table).save_to_disk(path)
    edit, cat = read_prompts(str(path))
    assert (edit.text, edit.negative.strip(), edit.answer, edit.source) == ("make it red", "", "red", "edits")
    assert (np.asarray(edit.images[0].image()) == PIXELS).all()
    assert edit.info["extra_info"] == {"index": 3, "source": {}}
    assert edit.info["reward_model"] == {"ground_truth": "red", "style": "model"}  # every key that the user wrote
    assert "images" not in edit.info
    assert edit.where == f"{path}, row 1"
    assert (cat.text, cat.negative, cat.images, cat.answer) == ("a cat", "", (), "cat")


def test_several_files_follow_each_other(tmp_path):
    one, two = written(tmp_path, "a\nb", "one.txt"), written(tmp_path, '{"prompt": "c"}', "two.jsonl")
    assert [prompt.text for prompt in read_prompts([one, two])] == ["a", "b", "c"]


def test_options_name_other_keys(tmp_path):
    pictures(tmp_path, "a.png", "b.png")
    record = {"task": {"text": "red"}, "prompt": "no", "source": "a.png", "image": "b.png", "solution": "x",
              "direction": "left", "depth": "b.png"}  # fmt: skip
    keys = PromptOptions(
        prompt_key="task.text",
        images_key="source",
        answer_key="solution",
        extra_keys=["direction"],
        input_keys=["depth"],
    )
    (prompt,) = read_prompts(written(tmp_path, json.dumps(record)), keys)
    own = {"direction": "left", "task": {"text": "red"}, "prompt": "no", "solution": "x"}
    assert (prompt.text, prompt.answer, prompt.info) == ("red", "x", own)
    assert prompt.images == (Media.file(tmp_path / "a.png"),)
    assert prompt.inputs == (("depth", Media.file(tmp_path / "b.png")),)
    assert read_prompts(written(tmp_path, "a dog", "x.txt"), keys)[0].text == "a dog"


def test_own_keys_are_kept_and_change_no_random_number(tmp_path):
    plain = {"prompt": "red", "answer": "x"}
    own = plain | {"difficulty": 3, "tags": ["a", None], "when": "\ud800", "image_bytes": None}
    one, other, labelled = read_prompts(
        written(tmp_path, "\n".join(json.dumps(each) for each in (plain, own, own | {"label": "shapes"})), "own.jsonl")
    )
    assert one.uid == other.uid
    assert other.info == {"answer": "x", "difficulty": 3, "tags": ["a", None], "when": "\ud800"}
    assert (one.info, one.label, labelled.label) == ({"answer": "x"}, None, "shapes")
    named = read_prompts(str(tmp_path / "own.jsonl"), PromptOptions(label_key="difficulty_of"))
    assert [prompt.label for prompt in named] == [None] * 3


def test_a_broken_picture_names_its_record(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no picture")
    lines = ['{"prompt": "fine"}', '{"prompt": "p", "image": "a.png"}', '{"prompt": "p", "mask_image": "a.png"}']
    messages = refused(path := written(tmp_path, "\n".join(lines)))
    assert [message.split(": ")[0] for message in messages] == [f"{path}:2", f"{path}:3"]
    assert all("can't be decoded" in message for message in messages)


def test_a_folder_that_only_looks_like_a_saved_data_set_is_refused(tmp_path):
    pytest.importorskip("datasets")
    for name, content in (("state.json", "[]"), ("dataset_info.json", "{}")):
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match="was not saved by the datasets library"):
        read_prompts(str(tmp_path))
    for content in ('{"splits": 5}', '{"splits": [1]}', "[]"):
        (tmp_path / "dataset_dict.json").write_text(content)
        with pytest.raises(UserError, match="holds several splits"):
            read_prompts(str(tmp_path))
