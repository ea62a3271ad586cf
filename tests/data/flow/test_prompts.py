import json
import re

import pytest

from burnish.data.flow.prompts import read_prompts
from burnish.types.rollout import Prompt
from burnish.utils.errors import UserError


def written(tmp_path, content: str | bytes, name: str = "prompts.jsonl"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refused(path) -> list[str]:
    with pytest.raises(UserError) as caught:
        read_prompts(path)
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
        Prompt(text="five", answer="5"),
        Prompt(text="null is nothing"),
    ]


WRONG = {
    '{"prompt": "a"': "not JSON: .* at column 15",
    "a cat": "not JSON: .* at column 1",
    '["a cat"]': "holds list, not an object",
    '"a cat"': "holds str, not an object",
    "{}": "has no prompt; its keys are none",
    '{"promt": "a"}': "has no prompt; its keys are 'promt'",
    '{"prompt": null}': "has no prompt",
    '{"prompt": 3}': "'prompt' is 3; it must be text",
    '{"prompt": [{"role": "user"}]}': "'prompt' is .*; it must be text",
    '{"prompt": " "}': "has an empty prompt",
    '{"prompt": ""}': "has an empty prompt",
    '{"prompt": "a", "text": "b"}': "has 'prompt' and 'text', which mean the same",
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
    assert "holds no prompt" in refused(written(tmp_path, content))[0]


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    assert "no such file" in refused(tmp_path / "missing.txt")[0]
    (tmp_path / "folder.txt").mkdir()
    assert "is a folder" in refused(tmp_path / "folder.txt")[0]
    assert "neither .txt" in refused(written(tmp_path, "a", "prompts.csv"))[0]
