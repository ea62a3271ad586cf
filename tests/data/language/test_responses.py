import json
import re

import numpy as np
import pytest

from burnish.data.language.responses import read_responses
from burnish.options.language import LanguageDataOptions
from burnish.types.media import Media
from burnish.utils.errors import UserError

GREY = np.arange(24, dtype=np.uint8).reshape(4, 6)


def read(holds, folder, *records, **options):
    file = folder / "data.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "grey.png").write_bytes(Media.array(GREY).read())
    return read_responses(str(file), LanguageDataOptions(train_files=str(file), **options), holds)


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict:
    return {"role": "assistant", "content": text}


ASKED = {"role": "user", "content": "a"}
CALLING = assistant("") | {"tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]}


def test_turns_that_are_not_to_be_learned_are_read_and_not_learned(tmp_path):
    said = [assistant("b") | {"weight": 0}, ASKED, assistant("c") | {"weight": 1}, ASKED, assistant("d")]
    found = read("demonstrations", tmp_path, {"messages": [ASKED, *said]})
    assert [(len(one.prompt.messages), one.responses) for one in found] == [(3, ("c",)), (5, ("d",))]


def test_a_demonstration_is_a_question_and_its_response(tmp_path):
    records = [
        {"prompt": "<image>?", "image": "grey.png", "response": "grey", "answer": "g"},
        {"question": "a?", "completion": [assistant("b")]},
        {"question": "a?", "mine": "c"},
    ]
    with pytest.raises(UserError, match=r":3: has no response"):
        read("demonstrations", tmp_path, *records)
    first, second = read("demonstrations", tmp_path, *records[:2])
    assert (first.responses[0], first.prompt.answer, len(first.prompt.images)) == ("grey", "g", 1)
    assert (second.prompt.text, second.responses[0]) == ("a?", "b")
    (third,) = read("demonstrations", tmp_path, records[2], response_key="mine")
    assert third.responses[0] == "c"


def test_every_turn_of_the_assistant_is_a_demonstration(tmp_path):
    parts = [{"type": "text", "text": "and"}, {"type": "image"}]
    chat = [user("one?"), assistant("1"), {"role": "user", "content": parts}, assistant("2")]
    first, second = read("demonstrations", tmp_path, {"messages": chat, "image": "grey.png"})
    assert (first.prompt.text, first.responses[0], first.prompt.images) == ("one?", "1", ())
    assert second.prompt.text == "one?\nand<image>"
    assert [message.role for message in second.prompt.messages] == ["user", "assistant", "user"]
    assert (second.responses[0], len(second.prompt.images)) == ("2", 1)


def test_preferences_are_texts_messages_or_conversations(tmp_path):
    records = [
        {"prompt": "a?", "chosen": "good", "rejected": "bad"},
        {"prompt": [user("a?")], "chosen": [assistant("good")], "rejected": [assistant("bad")]},
        {"chosen": [user("a?"), assistant("good")], "rejected": [user("a?"), assistant("bad")]},
    ]
    for pair in read("preferences", tmp_path, *records):
        assert (pair.prompt.text, *pair.responses) == ("a?", "good", "bad")
    pictured = {"prompt": "<image>?", "image": "grey.png", "chosen": "a", "rejected": "b"}
    (pair,) = read("preferences", tmp_path, pictured)
    assert len(pair.prompt.images) == 1


def test_judgements_are_good_or_bad(tmp_path):
    records = [{"prompt": "a?", "completion": "b", "label": label} for label in (True, False)]
    found = read("judgements", tmp_path, *records)
    assert [(one.responses[0], one.good, one.prompt.label) for one in found] == [("b", True, None), ("b", False, None)]


WRONG = [
    ("preferences", {"prompt": "a", "chosen": "b"}, "has no rejected"),
    ("preferences", {"prompt": "a", "chosen": "b", "rejected": "b"}, "prefers nothing"),
    ("preferences", {"chosen": "b", "rejected": "c"}, "has no prompt, and chosen and rejected are no conv"),
    ("preferences", {"prompt": "a", "chosen": [user("b")], "rejected": "c"}, "must be the assistant's"),
    (
        "preferences",
        {"chosen": [user("a"), assistant("b")], "rejected": [user("x"), assistant("c")]},
        "differ in the last message",
    ),
    ("judgements", {"prompt": "a", "response": "b", "label": "yes"}, "'label' is 'yes'; it must be true"),
    ("judgements", {"prompt": "a", "label": True}, "has no response"),
    ("judgements", {"prompt": "a", "response": "", "label": True}, "'response' is empty"),
    ("demonstrations", {"messages": [assistant("a")]}, "it answers nothing"),
    ("demonstrations", {"prompt": "a", "response": 3}, "'response' is 3; it must be text"),
    (
        "demonstrations",
        {"prompt": "a", "response": [{"role": "assistant", "content": [{"type": "image"}]}]},
        "a response must be text only",
    ),
    ("demonstrations", {"messages": [{"role": "user", "content": "a"}, CALLING]}, "has tool_calls in a response"),
    ("demonstrations", {"messages": [ASKED, assistant("b") | {"thinking": "c"}]}, "has thinking in a response"),
    ("demonstrations", {"messages": [ASKED, assistant("b") | {"train": False}]}, "has no message of the assistant tha"),
    ("preferences", {"prompt": "a", "chosen": [assistant("b") | {"reasoning": "c"}], "rejected": "b"}, "has reasoning"),
    ("preferences", {"prompt": "a", "chosen": [CALLING], "rejected": "b"}, "has tool_calls in a response"),
    ("judgements", {"messages": [{"role": "user", "content": "a"}, CALLING], "label": True}, "has tool_calls in a res"),
]


@pytest.mark.parametrize(("holds", "record", "why"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_a_wrong_sample_is_named_with_its_file_and_row(tmp_path, holds, record, why):
    with pytest.raises(UserError) as caught:
        read(holds, tmp_path, record)
    assert re.fullmatch(rf"{re.escape(str(tmp_path))}/data\.jsonl:1: .*{why}.*", str(caught.value))
