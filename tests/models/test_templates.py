"""Chat templates: turns, their ends, tools, what users write, templates and tokenizers of the user's own."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoTokenizer

from burnish.registry import lookup
from tests.support.language_samples import folder_of, model_of
from tests.support.model_runs import refused, run_of
from tests.support.talkers import load
from tests.support.tiny_language import SEEING, chat, noise_image, tiny_language
from tests.support.tiny_run import burnish
from tests.support.universal import universal_model

TABLES = yaml.safe_load(Path(__file__).with_name("templates.yaml").read_text())
TEMPLATES, CASES, RESULTS, CALLING, HEADERS = TABLES.values()


def write(folder, case):
    family, template, headed, eos, ends, _ = CASES[case]
    tiny_language(folder, family, marks=HEADERS * headed)
    notes = json.loads((folder / "tokenizer_config.json").read_text())
    notes |= {"bos_token": HEADERS[0]} if headed else {}
    notes |= {"eos_token": eos} if eos else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(notes))
    (folder / "chat_template.jinja").write_text(TEMPLATES[template])
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
    shown = messages if model.processor is not None else [m | {"content": m["content"][0]["text"]} for m in messages]
    text = model.tokenizer.apply_chat_template(
        list(shown), tools=tools, tokenize=False, add_generation_prompt=prompt, enable_thinking=False
    )
    return model.tokenizer(text, add_special_tokens=False).input_ids


@pytest.mark.parametrize("case", CASES)
def test_turns_join_to_what_the_template_writes_of_the_conversation_and_end_as_it_ends_them(models, case):
    model, end = models(case), CASES[case][-1]
    first, second, third = (said("user", text) for text in ("One?", "Two?", "Three?"))
    ids = model.encode([first]).ids[0].tolist()
    assert ids == whole(model, first)
    learned = [*ids, *model.response_ids("Uno.")]
    if case != "qwen3":  # whose last answer has thoughts before it
        assert whole(model, first, said("assistant", "Uno."), prompt=False)[: len(learned)] == learned
    for question, answer in ((second, "Uno."), (third, "Dos.")):
        response = model.response_ids(answer)
        assert model.tokenizer.convert_ids_to_tokens(response[-1]) == end
        turn = model.turn(response, [question])
        cut = model.turn(response[: -len(model.end)], [question])
        assert cut.ids[0].tolist() == [*model.end, *turn.ids[0].tolist()]
        assert turn.positions[0][0].tolist() == list(range(len(turn.ids[0])))
        ids += [*response, *turn.ids[0].tolist()]
    assert ids == whole(model, first, said("assistant", "Uno."), second, said("assistant", "Dos."), third)
    named = {model.tokenizer.convert_tokens_to_ids(one) for one in CASES[case][4]}
    assert set(model.stop) == named | set(model.end)


FUNCTIONS = {"add": "tests.support.tool_functions:add", "weigh": "tests.support.tool_functions:weigh"}
CALLS = "".join(f'<tool_call>{{"name": "add", "arguments": {{"a": {a}, "b": 2}}}}</tool_call>' for a in (40, 5))


@pytest.mark.parametrize("case", RESULTS)
def test_tools_are_told_by_the_template_and_their_results_are_wrapped_once(models, case):
    model, tools = models(case), lookup("environment", "tools")(functions=FUNCTIONS)
    told = tools.episode().step(CALLS)
    assert told.words == "42\n7"
    turn = model.turn(model.response_ids(CALLS), told.messages, tools=tools.tools()[None])
    assert RESULTS[case] in model.tokenizer.decode(turn.ids[0])
    ids = model.encode([said("user", "One?")], tools=tools.tools()[None]).ids[0].tolist()
    assert ids == whole(model, said("user", "One?"), tools=tools.tools()[None])
    assert '"name": "weigh", "description": "Weigh a thing."' in model.tokenizer.decode(ids)
    tools.close()


CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": ["<|im_end|>", 3]}}}


@pytest.mark.parametrize("arguments", CALLING)
def test_calls_are_written_as_the_template_or_else_qwen_does_and_forge_no_end(arguments, tmp_path):
    more = f"{{% for call in message.tool_calls or [] %}}({{{{ call.function.name }}}}){arguments}{{% endfor %}}"
    template = TEMPLATES["qwen2.5"].replace(
        "{{ message.content ~ '", "{{ message.content }}" + more * bool(arguments) + "{{ '"
    )
    model = load(write(tmp_path, "qwen2.5"), chat_template=template)
    ids = model.encode([said("user", "a"), said("assistant", "x") | {"tool_calls": [CALL]}]).ids[0]
    assert f"<|im_start|>assistant\n{CALLING[arguments]}<|im_end|>\n" in model.tokenizer.decode(ids)
    assert int((ids == model.tokenizer.convert_tokens_to_ids("<|im_end|>")).sum()) == 2


ANSWERED = said("assistant", "b")
CALLED = ANSWERED | {"tool_calls": [CALL | {"id": "1"}, CALL | {"id": "2"}]}
LOST = {
    "1 of 2, of role developer": [said("developer", "a"), said("user", "b")],
    "2 of 3, of role system": [said("system", "a"), said("system", "b"), said("user", "c")],
    "tool_call_id '2'": [said("user", "a"), CALLED, *(said("tool", one) | {"tool_call_id": one} for one in "21")],
}


def test_what_a_template_leaves_out_is_refused(models, tmp_path):
    model, thinking = (
        load(write(tmp_path, "qwen2.5"), chat_template=TEMPLATES["one system"]),
        ANSWERED | {"thinking": "c"},
    )
    for lost, messages in LOST.items():
        assert lost in model.chat.refusal(messages)
    in_order = [*LOST["tool_call_id '2'"][:2], *reversed(LOST["tool_call_id '2'"][2:])]
    assert model.chat.refusal(in_order) == model.chat.refusal(in_order) == ""
    assert "the thinking of message 1 of 2" in models("qwen2.5").chat.refusal([thinking, said("user", "d")])
    ids = model.encode([said("user", "a"), ANSWERED | {"thinking": "c<|im_end|>"}, said("user", "d")]).ids[0]
    assert "c<|im_end|>b<|im_end|>" in model.tokenizer.decode(ids)
    end = model.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert int((ids == end).sum()) == 3, "what was thought forges none"


def test_a_template_that_refuses_the_role_of_tools_is_refused_before_anything_is_sampled(files, tmp_path):
    write(tmp_path / "model", "mistral")
    options = [f"model.path={tmp_path / 'model'}", "environment.name=tools", f"environment.functions={FUNCTIONS}"]
    told = refused(files, "llama", *options, "environment.calls=hermes")
    assert "user, assistant, tool: Conversation roles must alternate" in told
    run_of(files, "llama", *options, "environment.role=user").train("steps=1")


FORGED = ["<|im_end|>", "<|im_start|>system", "<|video_pad|>", "<|vision_start|><|image_pad|>", "<image>", "<video>"]


@pytest.mark.parametrize("family", ["qwen3_vl", "smolvlm", "llama", "gemma3"])
def test_user_text_forges_nothing(family):
    model = universal_model("gemma3") if family == "gemma3" else model_of(family)
    special = torch.tensor(sorted(set(model.tokenizer.all_special_ids) | set(model.banned.tolist())))
    for text in ["<start_of_image>"] if family == "gemma3" else FORGED:
        seen = ("a ", noise_image(0), " b") if family == "gemma3" or family in SEEING else ("a b",)
        encoded, plain = (model.encode(*chat(*seen, f"{mark}c")) for mark in (text, ""))
        counts = [int(torch.isin(one.ids[0], special).sum()) for one in (encoded, plain)]
        assert counts[0] == counts[1], text
        assert text in model.decode(encoded.ids[0].tolist()).replace(" ", "").replace("▁", "")
    if family == "llama":
        private = "a\ue000b<|im_end|>\ue001"
        assert private in model.decode(model.encode(*chat(private)).ids[0].tolist())


# Another tokenizer or template in the place of the model's own

OWN = "{% for m in messages %}<q>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"


@pytest.fixture
def folder(tmp_path):
    return tiny_language(tmp_path / "model", "qwen2", vocab_size=300)


def rendered(model, *parts):
    return model.tokenizer.decode(model.encode(*chat(*parts)).ids[0])


def test_a_template_of_ones_own_is_used_and_saved_with_the_model(folder, tmp_path):
    (tmp_path / "own.jinja").write_text(OWN)
    about, file = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"chat_template": file.read_text()}))  # as it once was
    file.unlink()
    for given in (OWN, str(tmp_path / "own.jinja")):
        model = load(folder, chat_template=given)
        assert rendered(model, "hi") == "<q>hi<a>"
    model.save(tmp_path / "saved", dict(model.network.state_dict()))
    assert not any(path.is_symlink() for path in (tmp_path / "saved").rglob("*"))
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").chat_template == OWN
    assert rendered(load(tmp_path / "saved"), "hi") == "<q>hi<a>"
    assert rendered(load(folder), "hi") != "<q>hi<a>"
    tagged = "{% for m in messages %}{% generation %}{{ m.content }}{%- endgeneration -%}{% endfor %}"
    assert rendered(load(folder, chat_template=tagged), "hi") == "hi"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"chat_template": None}))
    bare = load(folder)
    ids = bare.encode([said("user", "a"), said("assistant", "x") | {"tool_calls": [CALL]}]).ids[0]
    assert bare.tokenizer.decode(ids) == f"a\n{CALLING['']}"
    assert bare.tokenizer.decode(bare.response_ids("b")) == f"b{bare.tokenizer.eos_token}"


def test_another_tokenizer_is_read_with_its_own_template_and_exported_beside_an_adapter(folder, files, tmp_path):
    other = AutoTokenizer.from_pretrained(folder)
    other.add_tokens(["<one>"], special_tokens=True)
    other.chat_template = OWN
    other.save_pretrained(tmp_path / "other")
    model = load(folder, tokenizer=str(tmp_path / "other"))
    assert rendered(model, "hi") == "<q>hi<a>"
    assert model.tokenizer.convert_tokens_to_ids("<one>") == len(other) - 1
    run = run_of(files, "qwen2", f"model.path={folder}", f"model.tokenizer={tmp_path / 'other'}")
    run.train("steps=1")
    burnish("export", run.output, "--output", tmp_path / "adapter", "--format", "lora")
    again = AutoTokenizer.from_pretrained(tmp_path / "adapter")
    assert (again.chat_template, len(again)) == (OWN, len(other))


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
