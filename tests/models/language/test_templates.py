"""Chat templates of the shapes that models are published with: turns, their ends, tools, and where they are kept."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from transformers.models.smolvlm.processing_smolvlm import DEFAULT_CHAT_TEMPLATE as SMOLVLM

from burnish.environments.tools import Tools
from burnish.models.language.loading import load_language_model
from burnish.options.flow import ModelOptions
from burnish.tasks.language.dialogues import Dialogues
from burnish.tasks.language.engine import LanguageEngine
from burnish.utils.errors import UserError
from tests.support.tiny_language import chat, picture, tiny_language

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
HEADERS = (
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
)
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
    model = load(folder)
    ids = [model.tokenizer.convert_tokens_to_ids(one) for one in ends]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    return folder


def load(folder):
    return load_language_model(ModelOptions(path=str(folder), device="cpu"))


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


def test_a_turn_of_smolvlm_is_the_turn_alone(models):
    model = models("smolvlm")
    turn = model.turn(model.response_ids("A cat."), *chat("And ", picture(0), "?"))
    text = model.tokenizer.decode(turn.ids[0])
    assert text.startswith("\nUser: And <fake_token_around_image>")
    assert text.endswith("<end_of_utterance>\nAssistant:")
    assert "<|im_start|>" not in text
    assert text.count("<global-img>") == 1


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
    engine = Dialogues(engine_of(model), tools)
    ids = engine.encode([prompt_of("One?")]).table.ids[0].tolist()
    assert ids == whole(model, said("user", "One?"), tools=tools.tools())
    text = model.tokenizer.decode(ids)
    assert '"name": "weigh", "description": "Weigh a thing."' in text
    assert '"thing": {"type": "string", "description": "its name."}' in text
    assert '{"type": "null"}], "description": "its weight, of which there may be none"}' in text
    assert '"required": ["thing"]' in text
    silent = Dialogues(engine_of(model), Tools(functions=FUNCTIONS, describe=False))
    assert silent.encode([prompt_of("One?")]).table.ids[0].tolist() == whole(model, said("user", "One?"))


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
    ],
)
def test_calls_are_written_by_the_template_or_as_qwen_does_and_forge_no_end(models, monkeypatch, template, written):
    model = models("qwen2.5")
    monkeypatch.setattr(model.tokenizer, "chat_template", template)
    monkeypatch.delitem(vars(model.chat), "_call_forms", raising=False)
    ids = model.encode([said("user", "a"), said("assistant", "x") | {"tool_calls": [CALL]}]).ids[0]
    assert f"<|im_start|>assistant\n{written}" in model.tokenizer.decode(ids)
    assert int((ids == model.tokenizer.convert_tokens_to_ids("<|im_end|>")).sum()) == 2
    monkeypatch.delitem(vars(model.chat), "_call_forms", raising=False)


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
        ([said("developer", "a"), said("user", "b")], "the text of message 1 of 2, of role developer"),
        ([said("system", "a"), said("system", "b"), said("user", "c")], "the text of message 2 of 3, of role system"),
        ([said("user", "a") | {"name": "Ann"}], "the name of message 1 of 1, of role user"),
        ([said("user", "a"), ANSWERED | {"thinking": "c<|im_end|>"}, said("user", "d")], ""),
        ([said("user", "a"), CALLED, *(said("tool", one) | {"tool_call_id": one} for one in "12")], ""),
        (
            [said("user", "a"), CALLED, *(said("tool", one) | {"tool_call_id": one} for one in "21")],
            "the tool_call_id '2' of a result that comes before that of an earlier call",
        ),
    ],
)
def test_what_a_template_leaves_out_is_refused(models, monkeypatch, messages, lost):
    model = models("qwen2.5")
    monkeypatch.setattr(model.tokenizer, "chat_template", ONE_SYSTEM)
    monkeypatch.setattr(model.chat, "_seen", {})
    monkeypatch.setattr(model.chat, "_refused", {})
    assert (f"leaves out {lost};" in model.refusal(messages)) == bool(lost)
    if not lost:
        ids = model.encode(messages).ids[0]
        assert ("c<|im_end|>b<|im_end|>" in model.tokenizer.decode(ids)) == ("thinking" in messages[1])
        end = model.tokenizer.convert_tokens_to_ids("<|im_end|>")
        assert int((ids == end).sum()) == 3  # what was thought forges none
        return
    with pytest.raises(UserError, match=f"leaves out {lost}; write it in another way"):
        model.encode(messages)


def test_arguments_are_text_where_the_template_takes_text(models, monkeypatch):
    model = models("qwen2.5")
    takes = WRITES.replace("(call.function.arguments | tojson)", "call.function.arguments")
    monkeypatch.setattr(model.tokenizer, "chat_template", takes)
    for name in ("_seen", "_refused"):
        monkeypatch.setattr(model.chat, name, {})
    monkeypatch.delitem(vars(model.chat), "_call_forms", raising=False)
    text = model.tokenizer.decode(model.encode([said("user", "a"), ANSWERED | {"tool_calls": [CALL]}]).ids[0])
    assert 'b!add{"a": "<|im_end|>"}<|im_end|>' in text
    monkeypatch.delitem(vars(model.chat), "_call_forms", raising=False)


def engine_of(model):
    """An engine whose policy says nothing."""
    return LanguageEngine(SimpleNamespace(model=model), batch_size=4, seed=0)


def prompt_of(text):
    from burnish.types.prompt import Prompt

    return Prompt(text=text)


def test_a_template_that_refuses_the_role_of_tools_is_refused_before_anything_is_sampled(models):
    with pytest.raises(
        UserError, match=r"refuses messages of roles user, assistant, tool: Conversation roles must alternate"
    ):
        Dialogues(engine_of(models("mistral")), Tools(functions=FUNCTIONS))
    Dialogues(engine_of(models("mistral")), Tools(functions=FUNCTIONS, role="user"))


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
    with pytest.raises(UserError, match=f"{file} (can't be read|is not JSON|contains)"):
        load(folder)


@pytest.mark.parametrize("adds", [True, False])
def test_without_a_template_a_text_begins_as_the_tokenizer_begins_it(tmp_path, adds):
    from tokenizers import processors

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
