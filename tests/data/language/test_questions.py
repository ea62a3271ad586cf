import base64
import io
import json
import re
import wave

import numpy as np
import pytest
from PIL import Image

from burnish.data.language.prompts import read_questions, within_length
from burnish.options.language import LanguageDataOptions
from burnish.types.media import Media
from burnish.types.packed import Prompts
from burnish.types.prompt import Message, Part, Prompt
from burnish.utils.errors import UserError

RED = np.full((4, 6, 3), (200, 10, 10), dtype=np.uint8)
GREY = np.arange(24, dtype=np.uint8).reshape(4, 6)


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "red.png").write_bytes(png(RED))
    (tmp_path / "pictures" / "grey.png").write_bytes(png(GREY))
    (tmp_path / "broken.png").write_bytes(png(RED)[:40])
    return tmp_path


def read(folder, *records, name="data.jsonl", **options) -> list[Prompt]:
    text = json.dumps(records) if name.endswith(".json") else "".join(json.dumps(r) + "\n" for r in records)
    (folder / name).write_text(text)
    return read_questions(str(folder / name), LanguageDataOptions(train_files=str(folder / name), **options))


def refused(folder, *records, **options) -> list[str]:
    with pytest.raises(UserError) as caught:
        read(folder, *records, **options)
    return str(caught.value).split("\n")


def pixels(media: Media) -> np.ndarray:
    return np.asarray(media.image())


def test_markers_of_a_plain_prompt_become_places_in_order(folder):
    images = ["pictures/red.png", "pictures/grey.png"]
    (prompt,) = read(folder, {"prompt": "<image> and <image>: same?", "images": images, "answer": 7})
    parts = (Part("image"), Part("text", " and "), Part("image"), Part("text", ": same?"))
    assert prompt.messages == (Message("user", parts),)
    assert prompt.text == "<image> and <image>: same?"
    assert prompt.answer == "7"
    np.testing.assert_array_equal(pixels(prompt.images[0]), RED)
    np.testing.assert_array_equal(pixels(prompt.images[1])[..., 0], GREY)
    assert prompt.chat()[0]["content"][:2] == [{"type": "image"}, {"type": "text", "text": " and "}]


def test_text_alone_is_the_prompt_that_it_always_was(folder):
    (prompt,) = read(folder, {"prompt": "a cat", "data_source": "animals"})
    assert prompt == Prompt(text="a cat", source="animals")
    assert prompt.uid == Prompt(text="a cat", source="animals").uid
    assert Prompt(text="a cat 42").uid == "48837888596cf699"


def test_words_of_a_chat_forge_no_place(folder):
    content = [{"type": "image"}, {"type": "text", "text": "what does <image> or <|image_pad|> mean?"}]
    chat = [{"role": "user", "content": content}]
    (prompt,) = read(folder, {"messages": chat, "image": "pictures/red.png"})
    assert [part.kind for part in prompt.messages[0].parts] == ["image", "text"]
    (words,) = read(folder, {"messages": [{"role": "user", "content": "what does <image> mean?"}]})
    assert words.turns == (Message("user", (Part("text", "what does <image> mean?"),)),)


def test_strings_of_a_chat_have_markers_where_the_record_has_pictures(folder):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "<image>What is it?"}]
    (prompt,) = read(folder, {"prompt": chat, "images": [{"path": "pictures/red.png"}]})
    assert prompt.messages[1].parts == (Part("image"), Part("text", "What is it?"))
    assert prompt.text == "<image>What is it?"


@pytest.mark.parametrize("chatty", [False, True], ids=["text", "chat"])
def test_pictures_without_places_go_where_the_user_begins_to_speak(folder, chatty):
    """As in data sets of TRL, whose questions are words alone beside a column of images."""
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Same?"}]
    chat += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And why?"}]
    record = {"prompt": chat if chatty else "Same?", "images": ["pictures/red.png", "pictures/grey.png"]}
    words, places = Part("text", "Same?"), (Part("image"), Part("image"))
    (first,) = read(folder, record)
    (last,) = read(folder, record, unmarked="last")
    assert first.messages[int(chatty)] == Message("user", (*places, words))
    assert last.messages[int(chatty)] == Message("user", (words, *places))
    assert [pixels(image)[0, 1].tolist() for image in first.images] == [[200, 10, 10], [1, 1, 1]]
    assert sum(part.kind == "image" for message in first.messages for part in message.parts) == 2
    assert "has 2 pictures, but 0 placeholders for them" in refused(folder, record, unmarked="error")[0]
    one = record | {"prompt": "<image>Same?"}  # a place for one of two is a mistake
    assert "has 2 pictures, but 1 placeholders for them" in refused(folder, one)[0]


def test_pictures_that_have_places_stay_in_them_beside_videos_that_have_none(folder):
    video = {"frames": ["pictures/red.png", "pictures/grey.png"], "fps": 2}
    (prompt,) = read(folder, {"prompt": "What is <image>?", "image": "pictures/red.png", "videos": [video]})
    assert [part.kind for part in prompt.messages[0].parts] == ["video", "text", "image", "text"]
    nobody = [{"role": "system", "content": "Look."}]
    assert "has 1 pictures, but 0 placeholders" in refused(folder, {"prompt": nobody, "image": "pictures/red.png"})[0]


def test_a_part_may_bring_its_picture(folder):
    url = "data:image/png;base64," + base64.b64encode(png(GREY)).decode()
    chat = [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "image"}]},
        {"role": "assistant", "content": "Two pictures."},
        {"role": "user", "content": [{"type": "image", "image": "pictures/grey.png", "text": None}]},
    ]
    (prompt,) = read(folder, {"messages": chat, "images": ["pictures/red.png"]})
    assert [pixels(image)[0, 1].tolist() for image in prompt.images] == [[1, 1, 1], [200, 10, 10], [1, 1, 1]]
    assert prompt.images[0] == prompt.images[2]


@pytest.mark.parametrize(
    "value",
    [
        "pictures/red.png",
        {"path": "pictures/red.png"},
        {"bytes": None, "path": "pictures/red.png"},
        base64.b64encode(png(RED)).decode(),
        {"base64": base64.b64encode(png(RED)).decode()},
        RED.tolist(),
        {"array": RED.tolist()},
    ],
    ids=["path", "dict", "no bytes", "base64", "base64 dict", "array", "array dict"],
)
@pytest.mark.parametrize("several", [False, True])
def test_pictures_come_in_many_shapes(folder, value, several):
    (prompt,) = read(folder, {"prompt": "<image>?", "images" if several else "image": [value] if several else value})
    np.testing.assert_array_equal(pixels(prompt.images[0]), RED)


def test_a_prompt_is_known_by_content_not_by_place(folder):
    first = {"prompt": "<image>?", "image": "pictures/red.png"}
    second = {"prompt": "<image>?", "image": base64.b64encode(png(RED)).decode()}
    other = {"prompt": "<image>?", "image": "pictures/grey.png"}
    one, same, different = read(folder, first, second, other)
    assert one.uid == same.uid
    assert one.uid != different.uid
    labelled, extra = read(folder, first | {"label": "math"}, first | {"extra_info": {"a": 1}})
    assert len({one.uid, labelled.uid, extra.uid}) == 3
    assert (labelled.label, extra.info) == ("math", {"extra_info": {"a": 1}})


def test_answers_stand_under_the_fields_usual_keys(folder):
    records = [
        {"prompt": "a", "answer": "1"},
        {"question": "a", "solution": "2"},
        {"problem": "a", "reward_model": {"ground_truth": "3", "style": "rule"}},
        {"query": "a", "reference": 4.5, "label": "geo3k_rule"},
        {"prompt": "a"},
    ]
    found = read(folder, *records)
    assert [prompt.answer for prompt in found] == ["1", "2", "3", "4.5", None]
    assert [prompt.label for prompt in found] == [None, None, None, "geo3k_rule", None]
    record = {"prompt": "a", "answer": "1", "label": "B", "extra_info": {"hint": "h"}}
    (named,) = read(folder, record, answer_key="label", extra_keys=["extra_info.hint"])
    own = {"answer": "1", "label": "B", "extra_info": {"hint": "h"}}  # every key that the user wrote
    assert (named.answer, named.label, named.info) == ("B", None, own | {"extra_info.hint": "h"})
    talked, asked = read(folder, {"messages": [{"role": "user", "content": "a"}], "level": 2}, {"prompt": "a"})
    assert (talked.conversational, asked.conversational, talked.uid == asked.uid) == (True, False, True)
    assert (talked.info, asked.info) == ({"level": 2}, {})
    (told,) = read(folder, {"x": {"q": "deep"}}, prompt_key="x.q", system_prompt="Be brief.")
    assert [message.role for message in told.messages] == ["system", "user"]


USER = {"role": "user", "content": "so?"}


def calling(**function):
    """A message of the assistant that calls a tool."""
    return {"role": "assistant", "content": None, "tool_calls": [function]}


def test_calls_of_tools_are_part_of_what_was_said(folder):
    opened = {"role": "user", "content": "<image>a"}
    called = calling(name="f", arguments='{"a": 1}')
    whole = {"role": "assistant", "content": "", "tool_calls": [{"id": "7", "function": called["tool_calls"][0]}]}
    silent = {"role": "assistant", "content": ""}
    records = [
        {"messages": [opened, one, USER], "images": ["pictures/red.png"]} for one in (called, whole, silent, silent)
    ]
    told, known, nothing, again = read(folder, *records)
    assert len(told.images) == 1  # markers are placeholders beside a message without a text, too
    function = {"name": "f", "arguments": {"a": 1}}
    assert told.chat()[1]["tool_calls"] == [{"type": "function", "function": function}]
    assert known.chat()[1]["tool_calls"] == [{"type": "function", "function": function, "id": "7"}]
    assert "tool_calls" not in nothing.chat()[1]
    assert len({told.uid, known.uid, nothing.uid, again.uid}) == 3


def test_a_record_may_say_the_size_of_what_it_shows(folder):
    shown, image = [{"type": "image", "max_pixels": 4}, {"type": "image"}], "pictures/red.png"
    sized = {"path": image, "min_pixels": 3, "max_pixels": None}
    part = {"type": "image", "image": sized, "max_pixels": 5}
    frames = {"type": "video", "video": [image] * 3, "fps": 4, "max_frames": 2}
    records = [
        {"prompt": [{"role": "user", "content": shown}], "images": [image, sized]},
        {"prompt": "<image><image>", "images": [image, image]},
        {"prompt": [{"role": "user", "content": [part, frames]}]},
    ]
    first, plain, third = read(folder, *records, max_pixels=9, min_pixels=2)
    assert [(one.fit.min_pixels, one.fit.max_pixels) for one in first.images] == [(2, 4), (3, 9)]
    assert [(one.fit.min_pixels, one.fit.max_pixels) for one in third.images] == [(3, 5)]
    assert [(one.fps, one.fit.fps, one.fit.max_frames) for one in third.videos] == [(4.0, None, 2)]
    alike = read(folder, {**records[0], "images": [image, image]})[0]
    assert len({first.uid, plain.uid, alike.uid}) == 3


def test_keys_of_messages_and_tools_of_records_are_for_the_template(folder):
    thought = {"role": "assistant", "content": "b", "reasoning_content": "c", "name": None, "images": []}
    turns = [USER, thought, USER | {"name": "Ann"}]
    schema = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}, "b": None}}}
    records = [{"messages": [USER, {**thought, "reasoning_content": None}, USER]}, {"messages": turns}]
    told = [{"messages": turns, "tools": tools} for tools in ([schema], json.dumps([schema]), "a hammer", ["a saw"])]
    bare, more, listed, as_text, *others = read(folder, *records, *told)
    said = [{"type": "text", "text": "b"}]
    assert more.chat()[1] == {"role": "assistant", "content": said, "reasoning_content": "c"}
    assert more.chat()[2]["name"] == "Ann"
    own = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert listed.told([]) == [{"type": "function", "function": {"name": "f", "parameters": own}}]
    environment = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
    assert [one["function"]["name"] for one in as_text.told(environment)] == ["f", "g"]
    assert [one.told(environment) for one in others] == [environment] * 2
    assert (listed.uid, others[0].uid) == (as_text.uid, more.uid)
    assert len({one.uid for one in (bare, more, listed)}) == 3
    assert listed.info["tools"] == [schema]


WRONG = [
    ({"prompt": [USER | {"images": ["a.png"]}]}, "a message with the key 'images'; what it shows or plays must be par"),
    ({"prompt": "<image>", "images": [{"path": "pictures/red.png", "nframes": 3}]}, "with 'nframes', which is not kn"),
    ({"prompt": "<image>", "images": [{"path": "pictures/red.png", "max_pixels": 0}]}, "with max_pixels 0; it must be"),
    ({"prompt": [USER | {"reasoning": 3}]}, "a message whose 'reasoning' is 3; it must be text"),
    ({"prompt": [USER | {"weight": 1}]}, "a message of 'user' with 'weight', but only the assistant's are learned"),
    ({"prompt": [USER | {"loss": 0.5}]}, "a message whose 'loss' is 0.5; it must be 0 or 1"),
    ({"prompt": "<image>?"}, "has 0 pictures, but 1 placeholders for them; write <image> into the question"),
    (
        {"prompt": [{"role": "system", "content": "?"}], "image": "pictures/red.png"},
        "has 1 pictures, but 0 placeholders",
    ),
    ({"prompt": "<image><image>", "images": ["pictures/red.png"]}, "has 1 pictures, but 2 placeholders"),
    ({"prompt": "<video>"}, "has 0 videos, but 1 placeholders"),
    ({"prompt": "<image>?", "image": "none.png"}, "that can't be read: No such file"),
    ({"prompt": "<image>?", "image": "broken.png"}, "that can't be decoded"),
    ({"prompt": "<image>?", "image": "https://a.b/c.png"}, "download it"),
    ({"prompt": "<image>?", "image": 3}, "a picture that is 3; it must be a path"),
    ({"prompt": "<image>?", "image": [[0.5, 0.5], [1.0, 0.0]]}, "not a picture; give uint8"),
    ({"prompt": "<image>?", "image": "A" * 70 + "!"}, "can't be read|neither a path nor base64"),
    ({"prompt": "<image>?", "images": ["pictures/red.png"], "image": "pictures/red.png"}, "'images' and 'image'"),
    ({"prompt": " "}, "has an empty prompt"),
    ({"promt": "a"}, "has no prompt or messages or question or problem or query; its keys are 'promt'"),
    ({"prompt": "a", "question": "b"}, "has 'prompt' and 'question'; set data.prompt_key"),
    ({"prompt": "a", "answer": "1", "solution": "2"}, "set data.answer_key to the one to read"),
    ({"prompt": "a", "answer": float("nan")}, "'answer' is nan, no number to compare with"),
    ({"prompt": [calling(), USER]}, r"has a tool call \{\}; it must have a function with a name"),
    ({"prompt": [calling(name=""), USER]}, "must have a function with a name"),
    ({"prompt": [calling(name="f", arguments="{"), USER]}, "has a call of f whose arguments are '{': .*Expecting"),
    ({"prompt": [calling(name="f", arguments="3"), USER]}, "has a call of f whose arguments are '3': they are no obj"),
    ({"prompt": [{**calling(name="f"), "role": "user"}]}, "message of 'user' with tool_calls; they must be the assist"),
    ({"prompt": [{"role": "assistant", "content": None, "tool_calls": 3}, USER]}, "'tool_calls' is 3; it must be a l"),
    ({"prompt": "a", "answer": ["1"]}, r"'answer' is \['1'\]; it must be text"),
    ({"prompt": []}, "must be text or a list of messages"),
    (
        {"prompt": [{"role": "human", "content": "a"}]},
        "its role must be one of system, developer, user, assistant, tool",
    ),
    ({"prompt": [{"role": "user", "content": 3}]}, "with content 3"),
    ({"prompt": [{"role": "user", "content": [{"type": "smell"}]}]}, "a part of type 'smell'"),
    ({"prompt": [{"role": "user", "content": [{"type": "audio"}]}]}, "has 0 sounds, but 1 placeholders"),
    ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, r'0 pictures, but 1 .*add a part \{"type": "i'),
    ({"prompt": [{"role": "assistant", "content": "a"}]}, "ends with a message of the assistant"),
    ({"prompt": "\ud800"}, "half of a surrogate pair"),
]


@pytest.mark.parametrize(("record", "why"), WRONG, ids=lambda value: value[:40] if isinstance(value, str) else "")
def test_a_wrong_record_is_named_with_its_file_and_row(folder, record, why):
    (message,) = refused(folder, {"prompt": "a"}, record, {"prompt": "b"})
    assert re.match(f"{re.escape(str(folder))}/data.jsonl:2: .*({why})", message), message


def test_all_problems_are_told_at_once(folder):
    messages = refused(folder, *[{}] * 12, {"prompt": "a"})
    assert len(messages) == 11
    assert messages[-1] == "and 2 more"


def test_lists_tables_and_saved_datasets_hold_the_same_questions(folder):
    datasets = pytest.importorskip("datasets")
    import pyarrow
    import pyarrow.parquet

    chat = [{"role": "user", "content": "<image>What?"}]
    rows = [
        {"prompt": chat, "images": [{"bytes": png(RED), "path": None}], "reward_model": {"ground_truth": "1"}},
        {"prompt": chat, "images": [{"bytes": png(GREY), "path": None}], "reward_model": {"ground_truth": "2"}},
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "data.parquet")
    saved = datasets.Dataset.from_list(rows).cast_column("images", datasets.Sequence(datasets.Image()))
    saved.select([1, 0]).save_to_disk(folder / "saved")
    encoded = [row | {"images": [base64.b64encode(row["images"][0]["bytes"]).decode()]} for row in rows]
    listed = read(folder, *encoded, name="data.json")
    options = LanguageDataOptions(train_files="")
    table = read_questions(str(folder / "data.parquet"), options)
    both = read_questions([str(folder / "data.parquet"), str(folder / "saved")], options)
    assert [prompt.uid for prompt in table] == [prompt.uid for prompt in listed]
    assert both == [*table, *reversed(table)]
    np.testing.assert_array_equal(pixels(both[2].images[0])[..., 0], GREY)
    datasets.DatasetDict({"train": saved}).save_to_disk(folder / "splits")
    with pytest.raises(UserError, match=r"several splits; name one: .*splits/train"):
        read_questions(str(folder / "splits"), options)


def test_files_that_cannot_be_read_are_refused(folder):
    options = LanguageDataOptions(train_files="")
    (folder / "empty.jsonl").write_text("\n")
    (folder / "object.json").write_text("{}")
    (folder / "no.parquet").write_bytes(b"PAR1")
    for name, why in (
        ("none.jsonl", "no such file"),
        ("pictures/red.png", "can't be read; give .txt, .jsonl"),
        ("empty.jsonl", "holds no records"),
        ("object.json", "must be a list of objects"),
        ("no.parquet", "can't be read"),
        ("pictures", "was not saved by the datasets library"),
    ):
        with pytest.raises(UserError, match=why):
            read_questions(str(folder / name), options)
    with pytest.raises(UserError, match="the list of data files is empty"):
        read_questions([], options)


def test_frames_make_a_video(folder):
    frames = ["pictures/red.png"] * 3 + ["pictures/grey.png"] * 2
    single = {"prompt": "<video>?", "video": frames}
    listed = {"prompt": "<video><video>", "videos": [frames, {"frames": frames, "fps": 2}]}
    one, two = read(folder, single, listed)
    shots, fps = one.videos[0].video()
    assert (shots.shape, fps) == ((5, 4, 6, 3), 24.0)
    np.testing.assert_array_equal(shots[0], RED)
    few, slow = two.videos[1].video(max_frames=3)
    assert (few.shape[0], slow) == (3, pytest.approx(2 * 3 / 5))
    np.testing.assert_array_equal(few[-1][..., 0], GREY)
    assert one.videos[0] == two.videos[0] != two.videos[1]
    for rate in (0, -1, float("nan"), float("inf"), 10**300, True, "24"):
        video = {"frames": frames, "fps": rate}
        assert "frames per second; it must be" in refused(folder, {"prompt": "?", "video": video})[0]


def test_a_video_file_is_decoded(folder):
    av = pytest.importorskip("av")
    with av.open(str(folder / "clip.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "yuv420p"
        for level in range(0, 240, 24):
            frame = av.VideoFrame.from_ndarray(np.full((16, 32, 3), level, dtype=np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    (prompt,) = read(folder, {"prompt": "<video>?", "videos": ["clip.mp4"]})
    frames, fps = prompt.videos[0].video()
    assert (frames.shape, fps) == ((10, 16, 32, 3), 8.0)
    assert np.all(np.diff(frames.mean(axis=(1, 2, 3))) > 10)
    few, rate = prompt.videos[0].video(max_frames=4)
    assert (len(few), rate) == (4, pytest.approx(3.2))
    np.testing.assert_array_equal(few, frames[[0, 3, 6, 9]])
    with wave.open(str(folder / "sound.wav"), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(800))
    for name in ("sound.wav", "pictures"):
        (message,) = refused(folder, {"prompt": "<video>?", "videos": [name]})
        assert re.search("can't be (decoded|read)", message)


def test_long_prompts_are_refused_or_left_out_but_never_cut():
    prompts = Prompts.of(Prompt(text=text) for text in ("a", "b", "c"))

    def chosen(**options) -> list[str]:
        return [p.text for p in within_length(prompts, [3, 9, 5], LanguageDataOptions(train_files="", **options))]

    assert chosen() == ["a", "b", "c"] != chosen(max_prompt_length=5, overlong="filter") == ["a", "c"]
    with pytest.raises(UserError, match="2 of 3 prompts are longer") as caught:
        chosen(max_prompt_length=3)
    assert str(caught.value).split("\n")[1:] == ["9 tokens: prompt 'b'", "5 tokens: prompt 'c'"]
    with pytest.raises(UserError, match="3 of 3"):
        chosen(max_prompt_length=2, overlong="filter")
