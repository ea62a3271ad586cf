"""Chat templates: turns, their ends, tools, what users write, templates and tokenizers of the user's own."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from tokenizers import processors
from transformers import AutoTokenizer
from transformers.models.smolvlm.processing_smolvlm import DEFAULT_CHAT_TEMPLATE as SMOLVLM

from burnish.environments.tools import Tools
from burnish.utils.errors import UserError
from tests.support.language_samples import folder_of, model_of
from tests.support.model_runs import refused
from tests.support.talkers import load, outline, told_of_tools, words_beside
from tests.support.tiny_language import FAMILIES, SEEING, chat, picture, tiny_language
from tests.support.universal import universal_model

# short templates with the shape of the published ones
QWEN25 = (
    "{% if tools %}{{ '<|im_start|>system\n<tools>' }}{% for tool in tools %}{{ '\n' ~ (tool | tojson) }}{% endfor %}"
    "{{ '\n</tools><|im_end|>\n' }}{% endif %}{% for message in messages %}{% if message.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\n<tool_response>\n' ~ message.content ~ '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% elif message.role in ('user', 'system', 'assistant') %}"
    "{{ '<|im_start|>' ~ message.role ~ '\n' }}{{ message.content ~ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
THOUGHT = "{% if message.role == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
QWEN3 = QWEN25.replace("{{ message.content", THOUGHT + "{{ message.content")
LLAMA3 = (
    "{{ bos_token }}{% if tools %}<|start_header_id|>system<|end_header_id|>\n\n{% for tool in tools %}"
    "{{ tool | tojson }}{% endfor %}<|eot_id|>{% endif %}{% for message in messages %}"
    "{% set role = 'ipython' if message.role == 'tool' else message.role %}"
    "<|start_header_id|>{{ role }}<|end_header_id|>\n\n{{ message.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
STRICT = (  # Mistral's and Gemma's refuse whatever does not alternate
    "{{ bos_token }}{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message.role == 'user' %}[INST] {{ message.content }} [/INST]{% else %}{{ message.content }}{{ eos_token }}"
    "{% endif %}{% endfor %}"
)
HEADERS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>",
           "<|end_of_text|>")  # fmt: skip
CASES = {  # family, template, further tokens, how the tokenizer ends a text, how the generation ends, end of a turn
    "qwen2.5": ("qwen2", QWEN25, (), None, ["<|im_end|>", "<|endoftext|>"], "<|im_end|>"),
    "qwen2.5 base": ("qwen2", QWEN25, (), "<|endoftext|>", ["<|endoftext|>"], "<|im_end|>"),
    "qwen3": ("qwen3", QWEN3, (), None, ["<|endoftext|>", "<|im_end|>"], "<|im_end|>"),
    "llama3": ("llama", LLAMA3, HEADERS, "<|end_of_text|>", ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"],
               "<|eot_id|>"),
    "mistral": ("mistral", STRICT, HEADERS, "<|end_of_text|>", ["<|end_of_text|>"], "<|end_of_text|>"),
    "smolvlm": ("smolvlm", SMOLVLM, ("<end_of_utterance>",), "<end_of_utterance>", ["<end_of_utterance>"],
                "<end_of_utterance>"),
}  # fmt: skip


def write(folder, case):
    """A model's directory with the template of a case."""
    family, template, marks, eos, ends, _ = CASES[case]
    tiny_language(folder, family, marks=marks)
    notes = json.loads((folder / "tokenizer_config.json").read_text())
    notes |= {"bos_token": HEADERS[0]} if HEADERS[0] in marks else {}
    notes |= {"eos_token": eos} if eos else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(notes))
    (folder / "chat_template.jinja").write_text(template)
    ids = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids(ends)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    made = {}

    def model_of(case):
        if case not in made:
            made[case] = load(write(tmp_path_factory.mktemp(case.replace(" ", "-")), case))
        return made[case]

    return model_of


def said(role, text):
    return {"role": role, "content": [{"type": "text", "text": text}]}


def whole(model, *messages, prompt=True, tools=None):
    """A conversation as the tokenizer's own template writes it."""
    shown = messages if model.reads_parts else [m | {"content": m["content"][0]["text"]} for m in messages]
    text = model.tokenizer.apply_chat_template(
        list(shown), tools=tools, tokenize=False, add_generation_prompt=prompt, enable_thinking=False
    )
    return model.tokenizer(text, add_special_tokens=False).input_ids


@pytest.mark.parametrize("case", CASES)
def test_turns_join_to_what_the_template_writes_of_the_conversation(models, case):
    model = models(case)
    first, second, third = (said("user", text) for text in ("One?", "Two?", "Three?"))
    ids = model.encode([first]).ids[0].tolist()
    assert ids == whole(model, first)
    for question, answer in ((second, "Uno."), (third, "Dos.")):
        response = model.response_ids(answer)
        turn = model.turn(response, [question])
        cut = model.turn(response[: -len(model.end)], [question])
        assert cut.ids[0].tolist() == [*model.end, *turn.ids[0].tolist()]
        assert turn.positions[0][0].tolist() == list(range(len(turn.ids[0])))
        ids += [*response, *turn.ids[0].tolist()]
    assert ids == whole(model, first, said("assistant", "Uno."), second, said("assistant", "Dos."), third)


@pytest.mark.parametrize("case", CASES)
def test_an_answer_ends_as_the_template_ends_it(models, case):
    model, end = models(case), CASES[case][-1]
    assert model.tokenizer.convert_ids_to_tokens(model.response_ids("Yes")[-1]) == end
    learned = [*model.encode([said("user", "?")]).ids[0].tolist(), *model.response_ids("Yes")]
    if case != "qwen3":  # whose last answer has thoughts before it
        assert whole(model, said("user", "?"), said("assistant", "Yes"), prompt=False)[: len(learned)] == learned
    assert model.response_ids("Yes")[-1] in model.stop
    named = {model.tokenizer.convert_tokens_to_ids(one) for one in CASES[case][4]}
    assert set(model.stop) == named | set(model.end)


RESULTS = {
    "qwen2.5": "<|im_start|>user\n<tool_response>\n42\n</tool_response>\n"
    "<tool_response>\n7\n</tool_response><|im_end|>\n",
    "llama3": "<|start_header_id|>ipython<|end_header_id|>\n\n42<|eot_id|>"
    "<|start_header_id|>ipython<|end_header_id|>\n\n7<|eot_id|>",
    "smolvlm": "Tool: <tool_response>\n42\n</tool_response><end_of_utterance>\n"
    "Tool: <tool_response>\n7\n</tool_response><end_of_utterance>\n",
}
FUNCTIONS = {"add": "tests.support.tool_functions:add", "weigh": "tests.support.tool_functions:weigh"}
CALLS = "".join(f'<tool_call>{{"name": "add", "arguments": {{"a": {a}, "b": 2}}}}</tool_call>' for a in (40, 5))


@pytest.mark.parametrize("case", RESULTS)
def test_results_of_tools_are_wrapped_once(models, case):
    model, tools = models(case), Tools(functions=FUNCTIONS)
    told = tools.episode().step(CALLS)
    assert told.words == "42\n7"
    turn = model.turn(model.response_ids(CALLS), told.messages, tools=tools.tools())
    assert RESULTS[case] in model.tokenizer.decode(turn.ids[0])
    tools.close()


@pytest.mark.parametrize("case", ["qwen2.5", "qwen3", "llama3"])
def test_templates_are_told_what_tools_there_are(models, case):
    model, tools = models(case), Tools(functions=FUNCTIONS)
    ids = told_of_tools(model, tools, "One?")
    assert ids == whole(model, said("user", "One?"), tools=tools.tools())
    text = model.tokenizer.decode(ids)
    assert '"name": "weigh", "description": "Weigh a thing."' in text
    silent = Tools(functions=FUNCTIONS, describe=False)
    assert told_of_tools(model, silent, "One?") == whole(model, said("user", "One?"))


CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": "<|im_end|>"}}}
WRITES = QWEN25.replace(
    "message.content ~ '<|im_end|>\n'",
    "message.content }}{% for call in message.tool_calls %}{{ '!' ~ call.function.name ~ (call.function.arguments | "
    "tojson) }}{% endfor %}{{ '<|im_end|>\n'",
)


@pytest.mark.parametrize(
    ("template", "written"),
    [
        (QWEN25, 'x\n<tool_call>\n{"name": "add", "arguments": {"a": "<|im_end|>"}}\n</tool_call><|im_end|>\n'),
        (WRITES, 'x!add{"a": "<|im_end|>"}<|im_end|>\n'),
        (
            WRITES.replace("(call.function.arguments | tojson)", "call.function.arguments"),  # it takes text
            'x!add{"a": "<|im_end|>"}<|im_end|>\n',
        ),
    ],
)
def test_calls_are_written_by_the_template_or_as_qwen_does_and_forge_no_end(template, written, tmp_path):
    model = load(write(tmp_path, "qwen2.5"), chat_template=template)
    ids = model.encode([said("user", "a"), said("assistant", "x") | {"tool_calls": [CALL]}]).ids[0]
    assert f"<|im_start|>assistant\n{written}" in model.tokenizer.decode(ids)
    assert int((ids == model.tokenizer.convert_tokens_to_ids("<|im_end|>")).sum()) == 2


SECOND = "{% if message.role != 'system' or loop.first %}{{ '<|im_start|>' ~ message.role"
ONE_SYSTEM = QWEN25.replace("{{ '<|im_start|>' ~ message.role", SECOND).replace(
    "message.content ~ '<|im_end|>\n' }}",
    "(message.reasoning_content or '') ~ message.content ~ '<|im_end|>\n' }}{% endif %}",
)
ANSWERED = said("assistant", "b")
CALLED = ANSWERED | {"tool_calls": [CALL | {"id": "1"}, CALL | {"id": "2"}]}


@pytest.mark.parametrize(
    ("messages", "lost"),
    [
        ([said("developer", "a"), said("user", "b")], "1 of 2, of role developer"),
        ([said("system", "a"), said("system", "b"), said("user", "c")], "2 of 3, of role system"),
        ([said("user", "a") | {"name": "Ann"}], "name of message 1 of 1"),
        ([said("user", "a"), ANSWERED | {"thinking": "c<|im_end|>"}, said("user", "d")], ""),
        ([said("user", "a"), CALLED, *(said("tool", one) | {"tool_call_id": one} for one in "12")], ""),
        ([said("user", "a"), CALLED, *(said("tool", one) | {"tool_call_id": one} for one in "21")], "tool_call_id '2'"),
    ],
)
def test_what_a_template_leaves_out_is_refused(messages, lost, tmp_path):
    model = load(write(tmp_path, "qwen2.5"), chat_template=ONE_SYSTEM)
    assert (lost in model.refusal(messages)) if lost else not model.refusal(messages)
    if not lost:
        ids = model.encode(messages).ids[0]
        assert ("c<|im_end|>b<|im_end|>" in model.tokenizer.decode(ids)) == ("thinking" in messages[1])
        end = model.tokenizer.convert_tokens_to_ids("<|im_end|>")
        assert int((ids == end).sum()) == 3  # what was thought forges none
        return
    with pytest.raises(UserError, match=lost):
        model.encode(messages)


def test_a_template_that_refuses_the_role_of_tools_is_refused_before_anything_is_sampled(models):
    with pytest.raises(UserError, match="user, assistant, tool: Conversation roles must alternate"):
        told_of_tools(models("mistral"), Tools(functions=FUNCTIONS), "One?")
    told_of_tools(models("mistral"), Tools(functions=FUNCTIONS, role="user"), "One?")


@pytest.mark.parametrize("family", ["smolvlm", "llama"])
@pytest.mark.parametrize("file", ["chat_template.json", "processor_config.json"])
def test_a_template_may_stand_where_old_processors_keep_it(tmp_path, family, file):
    folder = tiny_language(tmp_path, family)
    template = load(folder).tokenizer.chat_template
    (folder / "chat_template.jinja").unlink()
    (folder / file).write_text(json.dumps({"chat_template": template}))
    text = load(folder).tokenizer.decode(load(folder).encode([said("user", "Hi")]).ids[0])
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    (folder / file).write_text("[]")
    with pytest.raises(UserError, match=file):
        load(folder)


@pytest.mark.parametrize("adds", [True, False])
def test_without_a_template_a_text_begins_as_the_tokenizer_begins_it(tmp_path, adds):
    folder = write(tmp_path, "llama3")
    (folder / "chat_template.jinja").unlink()
    tokenizer = load(folder).tokenizer
    begin, end = (tokenizer.convert_tokens_to_ids(one) for one in (HEADERS[0], HEADERS[-1]))
    if adds:
        template = processors.TemplateProcessing(single=f"{HEADERS[0]} $A", special_tokens=[(HEADERS[0], begin)])
        tokenizer.backend_tokenizer.post_processor = template
    tokenizer.save_pretrained(folder)
    model = load(folder)
    assert model.tokenizer.chat_template is None
    assert model.encode([said("user", "Hi")]).ids[0].tolist() == [*[begin] * adds, *model.chat.ids("Hi", "\ue000")]
    assert model.response_ids("Hi")[-1] == end
    assert begin not in model.turn(model.response_ids("Hi"), [said("user", "Hi")]).ids[0].tolist()


# What users write is text


@pytest.mark.parametrize("family", FAMILIES)
def test_text_is_tokenised_as_transformers_does(family):
    model = model_of(family)
    parts = ("  Größe?\n\n<think> ", "a b")
    messages = [{"role": "system", "content": "Be brief."}, chat(*parts)[0][0]]
    flat = [messages[0], {"role": "user", "content": "".join(parts)}]
    expected = list(model.tokenizer.apply_chat_template(flat, add_generation_prompt=True, return_dict=False))
    encoded = model.encode(messages)
    assert encoded.ids[0].tolist() == expected
    assert encoded.positions[0].tolist() == torch.arange(len(expected)).expand(model.axes, -1).tolist()
    assert encoded.next_position == [len(expected)]
    ids = model.response_ids("<think>5+8</think> 13 <|im_end|>")
    assert ids[-1] in model.stop
    assert not set(ids[:-1]) & set(model.stop)
    assert model.decode(ids) == "<think>5+8</think> 13 <|im_end|>"


FORGED = ["<|im_end|>", "<|im_start|>system", "<|video_pad|>", "<|vision_start|><|image_pad|>", "<image>", "<video>"]


@pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
def test_user_text_forges_nothing(family):
    model = universal_model("gemma3") if family == "gemma3" else model_of(family)
    special = torch.tensor(sorted(set(model.tokenizer.all_special_ids) | set(model.banned.tolist())))
    for text in ["<start_of_image>"] if family == "gemma3" else FORGED:
        seen = ("a ", picture(0), " b") if family == "gemma3" or family in SEEING else ("a b",)
        encoded, plain = (model.encode(*chat(*seen, f"{mark}c")) for mark in (text, ""))
        counts = [int(torch.isin(one.ids[0], special).sum()) for one in (encoded, plain)]
        assert counts[0] == counts[1], text
        assert text in model.decode(encoded.ids[0].tolist()).replace(" ", "").replace("▁", "")
    if family == "llama":
        private = "a\ue000b<|im_end|>\ue001"
        assert private in model.decode(model.encode(*chat(private)).ids[0].tolist())


# Another tokenizer or template in the place of the model's own

OWN = "{% for m in messages %}<q>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
PARTS = (
    "{% for m in messages %}<q>{% for part in m.content %}{% if part.type == 'image' %}"
    "IMAGE{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)


@pytest.fixture
def folder(tmp_path):
    return tiny_language(tmp_path / "model", "qwen2", vocab_size=300)


def rendered(model, *parts):
    return model.tokenizer.decode(model.encode(*chat(*parts)).ids[0])


def test_a_template_of_ones_own_is_used_and_saved_with_the_model(folder, tmp_path):
    (tmp_path / "own.jinja").write_text(OWN)
    for given in (OWN, str(tmp_path / "own.jinja")):
        model = load(folder, chat_template=given)
        assert rendered(model, "hi") == "<q>hi<a>"
    model.save(tmp_path / "saved", dict(model.network.state_dict()))
    assert not any(path.is_symlink() for path in (tmp_path / "saved").rglob("*"))
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").chat_template == OWN
    assert rendered(load(tmp_path / "saved"), "hi") == "<q>hi<a>"
    assert rendered(load(folder), "hi") != "<q>hi<a>"
    tagged = "{% for m in messages %}{% generation %}{{ m.content }}{%- endgeneration -%}{% endfor %}"
    assert rendered(outline(folder, chat_template=tagged), "hi") == "hi"


@pytest.mark.parametrize(
    ("family", "mark"), [("qwen2_5_vl", "<|vision_start|><|image_pad|><|vision_end|>"), ("smolvlm", "<image>")]
)
def test_a_template_replaces_that_of_a_processor_too(family, mark, tmp_path):
    folder = tiny_language(tmp_path / "model", family)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "old"}))
    model = outline(folder, chat_template=PARTS.replace("IMAGE", mark))
    text = rendered(model, picture(0), "hi")
    assert text.startswith("<q>")
    assert text.endswith("hi")
    assert torch.isin(model.encode(*chat(picture(0), "hi")).ids[0], model.placeholders).any()


def test_another_tokenizer_is_read_with_its_own_template_and_written_beside_an_adapter(folder, tmp_path):
    other = AutoTokenizer.from_pretrained(folder)
    other.add_tokens(["<one>"], special_tokens=True)
    other.chat_template = OWN
    other.save_pretrained(tmp_path / "other")
    model = load(folder, tokenizer=str(tmp_path / "other"))
    assert rendered(model, "hi") == "<q>hi<a>"
    assert model.tokenizer.convert_tokens_to_ids("<one>") == len(other) - 1
    assert model.path.name == folder.name
    lines = words_beside(folder, tmp_path / "adapter", tokenizer=str(tmp_path / "other"))
    again = AutoTokenizer.from_pretrained(tmp_path / "adapter")
    assert (again.chat_template, len(again)) == (OWN, len(other))
    assert not list((tmp_path / "adapter").glob("*.safetensors"))
    assert lines == ['tokenizer = AutoTokenizer.from_pretrained("a")']
    assert words_beside(folder, tmp_path / "none") == []
    assert not list((tmp_path / "none").iterdir())


def test_a_tokenizer_that_does_not_fit_the_model_is_refused(files, tmp_path):
    reading, seeing = (folder_of(name) for name in ("qwen2", "qwen2_5_vl"))
    size = json.loads((reading / "config.json").read_text())["vocab_size"]
    more = AutoTokenizer.from_pretrained(reading)
    more.add_tokens([f"<{i}>" for i in range(size)])
    more.save_pretrained(tmp_path / "more")
    shutil.copytree(seeing, tmp_path / "others", ignore=shutil.ignore_patterns("*.safetensors"))
    load(seeing, tokenizer=str(tmp_path / "others"))
    for file in (tmp_path / "others").glob("tokenizer*.json"):
        file.write_text(file.read_text().replace("<|image_pad|>", "<|no_picture|>"))
    (tmp_path / "empty").mkdir()
    for model, option, names in (
        (reading, f"tokenizer={tmp_path / 'more'}", [str(size), "model.tokenizer"]),
        (seeing, f"tokenizer={tmp_path / 'others'}", ["<|no_picture|>", "<|image_pad|>", "image_token_id"]),
        (reading, f"tokenizer={tmp_path / 'nowhere'}", ["model.tokenizer is", "nowhere"]),
        (reading, f"tokenizer={tmp_path / 'empty'}", ["model.tokenizer is", "tokenizer_config.json"]),
        (reading, f"chat_template={tmp_path / 'nowhere.jinja'}", ["model.chat_template", "nowhere.jinja"]),
        (reading, "chat_template='{% for m in messages %}{{ m }}'", ["model.chat_template", "line 1"]),
    ):
        refused(files, "qwen2", f"model.path={model}", f"model.{option}", names=names)
