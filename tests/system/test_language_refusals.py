"""What is wrong with a run of a language model ends with exit code 2 and one message, before any weights are loaded."""

from __future__ import annotations

import json

import pytest

import burnish.tasks.language.assembly
from tests.support.runs import refused
from tests.support.tiny_language import picture, tiny_language

ASKED = {"role": "user", "content": "What?"}
QUESTION = {"prompt": "What?", "answer": "4"}


def lines(*records) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A recipe that would run, and files that would not."""
    folder = tmp_path_factory.mktemp("place")
    tiny_language(folder / "llama", "llama")
    picture(0).save(folder / "0.png")
    for name, config in (("unheard", {"model_type": "unheard"}), ("nothing", None)):
        (folder / name).mkdir()
        if config is not None:
            (folder / name / "config.json").write_text(json.dumps(config))
    files = {
        "good": lines(QUESTION, QUESTION | {"prompt": "And this?"}),
        "broken": lines(QUESTION) + '{"prompt": "What?\n',
        "keyless": lines(QUESTION, {"promt": "What?"}),
        "unanswered": lines(QUESTION, {"prompt": "Why?"}),
        "blind": lines(QUESTION | {"prompt": "<image>What?", "images": ["nowhere.png"]}),
        "uneven": lines(QUESTION | {"prompt": "<image><image>What?", "images": ["0.png"]}),
        "seen": lines(QUESTION, QUESTION | {"prompt": "<image>What?", "images": ["0.png"]}),
        "labelled": lines(QUESTION | {"label": "sum"}),
        "unpaired": lines(QUESTION | {"chosen": "4"}),
        "long": lines(QUESTION | {"prompt": "What " * 20}),
        "told": lines(
            QUESTION | {"response": "So."},
            QUESTION | {"prompt": "Why? " * 100, "response": "So it is. " * 190},
        ),
        "named": lines(QUESTION, QUESTION | {"prompt": [ASKED | {"name": "Ann"}]}),
        "armed": lines(QUESTION | {"tools": [{"name": "add"}]}),
        "endless": lines(QUESTION, QUESTION | {"prompt": "What " * 10_000}),
    }
    for name, text in files.items():
        (folder / f"{name}.jsonl").write_text(text)
    recipe = {
        "task": "image-text-to-text",
        "model": {"path": str(folder / "llama"), "device": "cpu"},
        "data": {"train_files": str(folder / "good.jsonl"), "train_batch_size": 2},
        "algorithm": {"name": "grpo"},
        "rewards": {"exact": {}},
        "rollout": {"n": 2, "max_new_tokens": 4},
        "scoring": {"processes": 0},
        "steps": 2,
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    return folder


REFUSED = {
    "missing directory": (["model.path={place}/nowhere"], ["model.path", "nowhere"]),
    "no model": (["model.path={place}/nothing"], ["nothing", "config.json"]),
    "model of no family": (["model.path={place}/unheard"], ["unheard", "transformers"]),
    "unknown family": (["model.family=gpt"], ["model.family", "gpt", "smolvlm"]),
    "missing file": (["data.train_files={place}/nowhere.jsonl"], ["data.train_files", "nowhere.jsonl"]),
    "broken JSON": (["data.train_files={place}/broken.jsonl"], ["broken.jsonl:2", "JSON"]),
    "record without question": (["data.train_files={place}/keyless.jsonl"], ["keyless.jsonl:2", "promt"]),
    "record without answer": (["data.train_files={place}/unanswered.jsonl"], ["exact", "Why?", "answer"]),
    "missing picture": (["data.train_files={place}/blind.jsonl"], ["blind.jsonl:1", "has a picture"]),
    "fewer pictures than markers": (["data.train_files={place}/uneven.jsonl"], ["uneven.jsonl:1", "<image>"]),
    "picture for a model that only reads": (
        ["data.train_files={place}/seen.jsonl"], ["model.path is", "reads text only", "seen.jsonl:2", "take them out"],
    ),
    "label of no reward": (
        ["data.train_files={place}/labelled.jsonl", "rewards.exact.labels=[digit]"], ["'sum'", "digit"],
    ),
    "pair with one response": (
        ["algorithm=dpo", "algorithm.online=false", "data.train_files={place}/unpaired.jsonl"],
        ["unpaired.jsonl:1", "rejected"],
    ),
    "validation file": (["data.val_files={place}/keyless.jsonl"], ["keyless.jsonl:2", "promt"]),
    "critic that is not there": (["critic.trunk=shared"], ["critic.trunk", "grpo has no critic", "algorithm=ppo"]),
    "trunk that is not shared": (["algorithm=ppo", "critic.detach=false"], ["critic", "detach", "trunk is own"]),
    "critic that warms up for ever": (
        ["algorithm=ppo", "critic.warmup_updates=2"], ["critic.warmup_updates is 2", "only 2 updates"],
    ),
    "ptx without files": (["ptx.coef=0.1"], ["ptx.train_files", "required"]),
    "missing file of ptx": (["ptx.train_files={place}/nowhere.jsonl"], ["ptx.train_files", "nowhere.jsonl"]),
    "ptx without responses": (["ptx.train_files={place}/good.jsonl"], ["good.jsonl:1", "response"]),
    "ptx of sft": (["algorithm=sft", "ptx.train_files={place}/good.jsonl"], ["ptx is given", "sft imitates"]),
    "another algorithm's option": (["algorithm.value_clip=0.1"], ["algorithm.value_clip", "ppo"]),
    "another task's option": (["rollout.num_inference_steps=4"], ["rollout.num_inference_steps"]),
    "another task's unit": (["trainer.micro_batch_size=4"], ["trainer.micro_batch_size"]),
    "another task's reward": (["rewards.ocr.weight=1"], ["ocr"]),
    "one response": (["rollout.n=1"], ["rollout.n is 1", "grpo compares samples"]),
    "target without controller": (["algorithm.kl.target=1"], ["target", "controller is fixed"]),
    "longer than the limit": (["rollout.min_new_tokens=5"], ["rollout.min_new_tokens is 5", "rollout.max_new_tokens"]),
    "penalty of everything": (
        ["algorithm.overlong.buffer=4"], ["algorithm.overlong.buffer is 4", "rollout.max_new_tokens is 4"],
    ),
    "filter of nothing": (["data.overlong=filter"], ["data.overlong", "data.max_prompt_length"]),
    "key of nothing": (["data.response_key=said"], ["data.response_key", "no responses"]),
    "word of no environment": (["rewards.environment.weight=1"], ["rewards.environment", "no environment"]),
    "deadline of nothing": (["scoring.timeout=3"], ["scoring.timeout", "scoring.processes"]),
    "more than there are": (["trainer.mini_batch_size=5"], ["trainer.mini_batch_size is 5", "4 samples"]),
    "part that is not there": (["model.freeze=[model.visual]"], ["model.freeze", "model.visual"]),
    "everything frozen": (["model.freeze=['*']"], ["model.freeze", "nothing to train"]),
    "layer that is not there": (
        ["model.lora.targets=[q_proj, nope]", "model.lora.rank=2"], ["model.lora.targets", "nope"],
    ),
    "question too long": (
        ["data.train_files={place}/long.jsonl", "data.max_prompt_length=50"],
        ["data.max_prompt_length is 50", "data.overlong=filter", "What What", "long.jsonl:1"],
    ),
    "question longer than the model reads": (
        ["data.train_files={place}/endless.jsonl"],
        ["1 of 2 questions", "has 2048 (max_position_embeddings)", "tokens: prompt 'What What", "endless.jsonl:2"],
    ),
    "question longer than the model reads, to be judged by": (
        ["data.val_files={place}/endless.jsonl"], ["has 2048 (max_position_embeddings)", "endless.jsonl:2"],
    ),
    "response longer than the model reads": (
        ["rollout.max_new_tokens=2040"],
        ["2 of 2 questions leave no room for responses of 2040 tokens (rollout.max_new_tokens)", "model has 2048",
         "lower rollout.max_new_tokens to 20", "good.jsonl:1"],
    ),
    "response longer than vLLM reads": (
        ["rollout.engine=vllm", "rollout.vllm={python: python, max_model_len: 30}", "rollout.max_new_tokens=20"],
        ["the model has 30 (rollout.vllm.max_model_len)"],
    ),
    "name that the template doesn't write": (
        ["data.train_files={place}/named.jsonl"],
        ["1 of 2 conversations", "leaves out the name of message 1 of 1, of role user", "named.jsonl:2"],
    ),
    "tools that the template doesn't tell of": (
        ["data.train_files={place}/armed.jsonl"], ["has no place for tools", "armed.jsonl:1"],
    ),
    "demonstration too long": (
        ["algorithm=sft", "data.train_files={place}/told.jsonl", "rollout.max_new_tokens=200"],
        ["1 of 2 records are too long", "a response of", "rollout.max_new_tokens is 200", "data.overlong=filter"],
    ),
    "demonstration longer than the model reads": (
        ["algorithm=sft", "data.train_files={place}/told.jsonl", "rollout.max_new_tokens=1990", "validation.every=0"],
        ["1 of 2 records", "a prompt and a response of", "the model has 2048 positions (max_position_embeddings)"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("overrides", "words"), REFUSED.values(), ids=list(REFUSED))
def test_refused_before_weights_are_loaded(place, tmp_path, overrides, words, capsys, monkeypatch):
    def load(*args):
        raise AssertionError("weights are loaded")

    monkeypatch.setattr(burnish.tasks.language.assembly, "load_language_model", load)
    refused(place, tmp_path, capsys, overrides, words)
