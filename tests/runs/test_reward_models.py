"""Reward models: what their heads read, what they learn, and that others read what is exported."""

import json

import numpy as np
import peft
import pytest
import torch
from PIL import Image
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from burnish.language.offline import token_ends
from burnish.rewards.text.base import Response
from burnish.types.media import Media
from burnish.types.prompt import Message, Part, Prompt
from tests.support.asked import flow_reward, reward
from tests.support.language_samples import folder_of
from tests.support.tiny_run import TinyRun, burnish

QUESTIONS = ["How many?", "Which one is it?", "Why?", "Who says so?"]
LABELS = {
    "bradley_terry": [{"chosen": "yes, all", "rejected": "no"}, {"chosen": "a b c", "rejected": "none"}],
    "process_reward": [{"steps": ["one is one", "two is five"], "labels": [1, 0]}, {"steps": ["so"], "labels": [True]}],
}
LEARNING = ["rollout.max_new_tokens=40", "optimizer.lr=5e-3"]


def judge(files, algorithm, *options, steps):
    lines = [
        {"prompt": question, "data_source": f"kind{number % 2}"} | labels
        for number, question in enumerate(QUESTIONS) for labels in LABELS[algorithm]
    ]  # fmt: skip
    (files / "judged.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return TinyRun(
        files, "reward_models", "llama", f"algorithm={algorithm}", "data.train_files={files}/judged.jsonl",
        "data.train_batch_size=8", "trainer.epochs=1", "trainer.mini_batch_size=null",
        f"steps={steps}", *LEARNING, *options, name="judge",
    )  # fmt: skip


def scores(run, update):
    """Of the responses of held-out records, as validation wrote them, in three decimals."""
    lines = (run.output / "validation" / f"{update:06d}" / "samples.jsonl").read_text().splitlines()
    told = [json.loads(line)["response"].splitlines() for line in lines]
    return [[float(text.split(":")[0].removeprefix("chosen ").removeprefix("rejected ").split(",")[0]) for text in rows]
            for rows in told]  # fmt: skip


def asked():
    rows = [(labels[name], question) for question in QUESTIONS for labels in LABELS["bradley_terry"]
            for name in ("chosen", "rejected")]  # fmt: skip
    return [Response(text) for text, _ in rows], [Prompt(text=question) for _, question in rows]


@pytest.mark.parametrize("what", ["merged", "lora"])
def test_what_is_exported_gives_the_same_scores_in_burnish_and_in_transformers(what, files, tmp_path):
    run = judge(files, "bradley_terry", "algorithm.heads=[a, b]", steps=3)
    run.train()
    metrics = run.metrics[-1]
    assert metrics["val-aux/kind0/accuracy_b/mean@2"] == metrics["val-aux/kind1/accuracy/mean@2"] == 1
    assert "Judged as people did" in (run.output / "report.md").read_text()
    ours = [one for rows in scores(run, 3) for one in rows]
    assert metrics["val-aux/score/a/std"] == pytest.approx(np.std(ours), rel=0.01)
    out = tmp_path / "out"
    burnish("export", run.output, "--output", out, "--format", what)
    network = AutoModelForSequenceClassification.from_pretrained(
        out if what == "merged" else files / "llama", num_labels=2
    )
    if what == "lora":
        network = peft.PeftModel.from_pretrained(network, out)
    tokenizer = AutoTokenizer.from_pretrained(files / "llama")
    responses, prompts = asked()
    theirs = []
    for response, prompt in zip(responses, prompts, strict=True):
        chat = [{"role": "user", "content": prompt.text}]
        parts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False), response.text]
        ids = [one for part in parts for one in tokenizer(part, add_special_tokens=False).input_ids]
        ids = torch.tensor([[*ids, tokenizer.eos_token_id]])
        with torch.no_grad():
            theirs.append(network.eval()(ids).logits[0])
    assert [float(one[0]) for one in theirs] == pytest.approx(ours, abs=2e-3)
    if what == "lora":
        return
    one = reward("reward_model", path=str(out), heads={"a": 1.0, "b": 0.5}, batch_size=3)
    one.check(prompts)
    values = [score.value for score in one.score(responses, prompts)]
    assert values == pytest.approx([float(both[0] + 0.5 * both[1]) for both in theirs], abs=1e-4)
    shown = [Prompt(text=f"<image>{one.text}", messages=(Message("user", (Part("image"), Part("text", one.text))),),
                    images=(Media.encoded(b""),)) for one in prompts]  # fmt: skip
    blind = reward("reward_model", path=str(out), media="leave_out", heads={"a": 1.0, "b": 0.5})
    assert [score.value for score in blind.score(responses, shown)] == pytest.approx(values, abs=1e-4)
    for options, name in (({"heads": {"truth": 1.0}}, "'truth'"), ({"steps": "each"}, "steps")):
        with pytest.raises(ValueError, match=name):
            reward("reward_model", path=str(out), **options).check(prompts)
    with pytest.raises(ValueError, match="question"):
        flow_reward("reward_model", path=str(out)).check(prompts)
    out = out.rename(tmp_path / "other")  # of which nothing is loaded yet
    about = json.loads((out / "reward_head.json").read_text())
    (out / "reward_head.json").write_text(json.dumps(about | {"heads": ["a", "b", "c"]}))
    with pytest.raises(ValueError, match=r"heads of shape \[2, \d+\], which don't fit its model"):
        reward("reward_model", path=str(out)).prepare()
    (out / "reward_head.json").write_text("{")
    with pytest.raises(ValueError, match=r"reward_head\.json"):
        reward("reward_model", path=str(out)).check(prompts)


@pytest.mark.parametrize(("pad", "template"), [(None, True), (3, False)])
def test_a_classifier_of_transformers_reads_the_conversation_or_a_pair_of_texts(pad, template, tmp_path):
    options = {"pad_token_id": pad, "ignore_mismatched_sizes": True}
    network, two = (
        AutoModelForSequenceClassification.from_pretrained(folder_of("llama"), num_labels=n, **options).eval()
        for n in (1, 2)
    )
    tokenizer, (responses, prompts), expected = AutoTokenizer.from_pretrained(folder_of("llama")), asked(), []
    for response, prompt in zip(responses, prompts, strict=True):
        chat = [{"role": "user", "content": prompt.text}, {"role": "assistant", "content": response.text}]
        text = [tokenizer.apply_chat_template(chat, tokenize=False)] if template else [prompt.text, response.text]
        ids = tokenizer(*text, add_special_tokens=not template, return_tensors="pt").input_ids
        expected.append(network(ids).logits[0, 0].item())
    network.save_pretrained(tmp_path)
    one = reward("reward_model", path=str(tmp_path), batch_size=3, max_length=60)
    with pytest.raises(ValueError, match="tokenizer"):
        one.prepare()
    tokenizer.chat_template = tokenizer.chat_template if template else None
    tokenizer.save_pretrained(tmp_path)
    one.check(prompts)
    *found, long = one.score([*responses, Response("a " * 60)], [*prompts, prompts[0]])
    assert [score.value for score in found] == pytest.approx(expected, abs=1e-5)
    assert (long.value, "exceed max_length=60" in long.note) == (None, True)
    with pytest.raises(ValueError, match="leave heads and steps out"):
        reward("reward_model", path=str(tmp_path), steps="each").check(prompts)
    with pytest.raises(ValueError, match="has no heads that Burnish trained"):
        flow_reward("reward_model", path=str(tmp_path)).check(prompts)
    two.save_pretrained(tmp_path / "two")
    with pytest.raises(ValueError, match="has 2 labels; a reward model must have one"):
        reward("reward_model", path=str(tmp_path / "two")).prepare()


def test_a_reward_model_judges_steps_where_they_end(files, tmp_path):
    run = judge(files, "process_reward", steps=2)
    run.train()
    burnish("export", run.output, "--output", tmp_path / "out")
    prompts = [Prompt(text=QUESTIONS[0])]
    responses = [Response("one is one\ntwo is five")]
    lines = (run.output / "validation/000002/samples.jsonl").read_text().splitlines()
    ours = [float(text) for text in json.loads(lines[0])["response"].partition(":")[0].split(",")]
    (each,) = reward("reward_model", path=str(tmp_path / "out"), steps="each").score(responses, prompts)
    values = [value for _, value in each.steps]
    assert [end for end, _ in each.steps] == [11, 22]
    assert values == pytest.approx(torch.tensor(ours).sigmoid().tolist(), abs=1e-3)
    assert each.value == pytest.approx(sum(values))
    for name, total in (("min", min(values)), ("last", values[-1]), ("mean", sum(values) / 2)):
        (one,) = reward("reward_model", path=str(tmp_path / "out"), steps=name).score(responses, prompts)
        assert one.value == pytest.approx(total, abs=1e-5)
    (empty,) = reward("reward_model", path=str(tmp_path / "out")).score([Response(" \n")], prompts)
    assert empty.value is None
    pieces = ["", " ", "on", "e\nt", "wo", ""]  # white space of a chat template, and an end token
    assert token_ends(lambda ids: "".join(pieces[token] for token in ids), range(6), "one\ntwo", [4, 7]) == [4, 5]


QUESTION = "Is this {prompt}?"


def grey(value, seed):
    noise = np.random.default_rng(seed).integers(-20, 20, (16, 24, 3))
    return np.clip(value + noise, 0, 255).astype(np.uint8)


def of_images(files, algorithm, lines, *options):
    (files / "drawn.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return TinyRun(
        files, "reward_models", "qwen2_5_vl", f"algorithm={{name: {algorithm}, question: '{QUESTION}'}}",
        "data.train_files={files}/drawn.jsonl", "data.train_batch_size=6", "trainer.mini_batch_size=null",
        "data.max_pixels=256", *LEARNING, *options, name="pictures",
    )  # fmt: skip


def test_it_scores_what_a_generator_draws_as_in_training(files, tmp_path):
    for number in range(6):
        for name, value in (("dark", 40), ("bright", 210)):
            Image.fromarray(grey(value, number)).save(files / f"{name}{number}.png")
    pairs = [{"prompt": "ink", "chosen": f"dark{i}.png", "rejected": f"bright{i}.png"} for i in range(6)]
    run = of_images(files, "bradley_terry", pairs, "steps=6")
    run.train()
    burnish("export", run.output, "--output", tmp_path / "out")
    about = json.loads((tmp_path / "out" / "reward_head.json").read_text())
    assert (about["question"], about["max_pixels"]) == (QUESTION, 256)
    with pytest.raises(ValueError, match="judges images that were drawn for a prompt"):
        reward("reward_model", path=str(tmp_path / "out")).check([Prompt(text="ink")])
    one = flow_reward("reward_model", path=str(tmp_path / "out"), batch_size=4)
    one.check([Prompt(text="ink")])
    drawn = [np.asarray(Image.open(files / f"{name}0.png")) for name in ("dark", "bright")]
    dark, bright = (score.value for score in one.score(drawn, [Prompt(text="ink")] * 2))
    assert dark > bright
    assert [dark, bright] == pytest.approx([value for rows in scores(run, 6) for value in rows][:2], abs=2e-3)
    before = Prompt(text="ink", images=(Media.file(files / "bright1.png"),))
    assert one.score(drawn[:1], [before])[0].value != dark
