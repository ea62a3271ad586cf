"""Reward models: what their heads read, what they learn, that others read what is exported, and steps that are paid."""

from __future__ import annotations

import json
import shutil

import numpy as np
import peft
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from burnish import load
from burnish.language.offline import offline_completion, token_ends
from burnish.rewards.text.base import Response
from burnish.rewards.text.reward_model import step_ends
from burnish.tasks import assemble
from burnish.tasks.language.judgements import rank_correlation
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from tests.support.asked import flow_reward, reward
from tests.support.tiny_run import TinyRun, burnish

QUESTIONS = ["How many?", "Which one is it?", "Why?", "Who says so?"]
LABELS = {
    "bradley_terry": [{"chosen": "yes, all", "rejected": "no"}, {"chosen": "a b c", "rejected": "none"}],
    "score_regression": [{"response": "yes, all", "score": 1.0}, {"response": "no", "score": -1.0}],
    "process_reward": [{"steps": ["one is one", "two is five"], "labels": [1, 0]}, {"steps": ["so"], "labels": [True]}],
}
LEARNING = ["rollout.max_new_tokens=40", "optimizer.lr=5e-3"]


def judge(files, model, algorithm, *options, steps=1, name="judge", lr="5e-3", shown="0.png"):
    """A run on records of which half show a picture where the model sees."""
    shown = [[shown] if model != "llama" and number % 2 else [] for number in range(4)]
    lines = [
        {"prompt": "<image>" * len(images) + question, "images": images, "data_source": f"kind{number % 2}"} | labels
        for number, (question, images) in enumerate(zip(QUESTIONS, shown, strict=True)) for labels in LABELS[algorithm]
    ]  # fmt: skip
    (files / "judged.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return TinyRun(
        files, "reward_models", model, f"algorithm={algorithm}", "data.train_files={files}/judged.jsonl",
        "data.train_batch_size=8", "trainer.epochs=1", "trainer.mini_batch_size=null",
        f"steps={steps}", LEARNING[0], f"optimizer.lr={lr}", *options, name=name,
    )  # fmt: skip


def scores(run, update):
    """Of the responses of held-out records, as validation wrote them, in three decimals."""
    lines = (run.output / "validation" / f"{update:06d}" / "samples.jsonl").read_text().splitlines()
    told = [json.loads(line)["response"].splitlines() for line in lines]
    return [[float(text.split(":")[0].removeprefix("chosen ").removeprefix("rejected ").split(",")[0]) for text in rows]
            for rows in told]  # fmt: skip


def asked():
    """Responses and prompts of records without pictures."""
    rows = [(labels[name], question) for question in QUESTIONS for labels in LABELS["bradley_terry"]
            for name in ("chosen", "rejected")]  # fmt: skip
    return [Response(text) for text, _ in rows], [Prompt(text=question) for _, question in rows]


@pytest.mark.parametrize("what", ["merged", "lora"])
def test_what_is_exported_gives_the_same_scores_in_burnish_and_in_transformers(what, files, tmp_path):
    run = judge(files, "llama", "bradley_terry", "algorithm.heads=[a, b]", steps=3)
    run.train()
    metrics = run.metrics[-1]
    assert metrics["val-aux/kind0/accuracy_b/mean@2"] == metrics["val-aux/kind1/accuracy/mean@2"] == 1
    assert "Judged as people did" in (run.output / "report.html").read_text()
    ours = [one for rows in scores(run, 3) for one in rows]
    burnish("export", run.output, "--output", tmp_path / "out", "--format", what)
    base = tmp_path / "out" if what == "merged" else files / "llama"
    network = AutoModelForSequenceClassification.from_pretrained(base, num_labels=2).eval()
    if what == "lora":
        network = peft.PeftModel.from_pretrained(network, tmp_path / "out")
    assembly = assemble(load(str(run.recipe), *run.options))
    responses, prompts = asked()
    theirs = []
    for response, prompt in zip(responses, prompts, strict=True):
        before = assembly.engine.encode([prompt]).table.ids[0]
        ids = torch.cat([before, torch.tensor(assembly.roles.model.response_ids(response.text))])
        with torch.no_grad():
            theirs.append(network(ids[None]).logits[0])
    assert [float(one[0]) for one in theirs] == pytest.approx(ours, abs=2e-3)
    if what == "merged":
        one = reward("reward_model", path=str(tmp_path / "out"), heads={"a": 1.0, "b": 0.5}, batch_size=3)
        one.check(prompts)
        values = [verdict.value for verdict in one.score(responses, prompts)]
        assert values == pytest.approx([float(both[0] + 0.5 * both[1]) for both in theirs], abs=1e-4)
        for options, name in (({"heads": {"truth": 1.0}}, "'truth'"), ({"steps": "each"}, "steps")):
            with pytest.raises(Exception, match=name):
                reward("reward_model", path=str(tmp_path / "out"), **options).check(prompts)
        with pytest.raises(Exception, match="question"):
            flow_reward("reward_model", path=str(tmp_path / "out")).check(prompts)
        with pytest.raises(ValueError, match="put_away"):
            reward("reward_model", path=str(tmp_path / "out"), put_away=True)
        (tmp_path / "out" / "reward_head.json").write_text("{")
        with pytest.raises(Exception, match=r"reward_head\.json"):
            reward("reward_model", path=str(tmp_path / "out")).check(prompts)


def test_an_adapter_of_a_model_without_a_classifier_lies_beside_its_head(files, tmp_path):
    run = judge(files, "qwen2_5_vl", "bradley_terry", "validation.every=null", "validation.before=false")
    run.train()
    said = burnish("export", run.output, "--output", tmp_path / "out", "--format", "lora")
    (head,) = (value for key, value in run.tensors.items() if key.endswith("score.weight") and "optimizer" not in key)
    assert torch.equal(load_file(tmp_path / "out" / "reward_head.safetensors")["score.weight"], head)
    assert "reward_head.safetensors" in said.out + said.err


def test_pictures_count_in_the_score_and_micro_batches_and_layouts_in_nothing(files):
    run = judge(files, "qwen2_5_vl", "bradley_terry")
    run.train()
    tensors, before = run.tensors, run.metrics[-1]
    moments = [key for key in tensors if "exp_avg" in key and "exp_avg_sq" not in key]  # after an update: gradients
    assert moments
    for layout in ("packed", "padded"):
        again = judge(files, "qwen2_5_vl", "bradley_terry", "trainer.micro_batch_tokens=60", f"trainer.layout={layout}")
        again.train()
        assert again.metrics[-1]["actor/grad_norm"] == pytest.approx(before["actor/grad_norm"], rel=1e-4)
        for key in moments:
            torch.testing.assert_close(again.tensors[key], tensors[key], atol=1e-6, rtol=1e-3)
    still = {}
    for name in ("0.png", "1.png"):  # what records show, and another picture in its place
        shutil.copy(files / name, files / "shown.png")
        run = judge(files, "qwen2_5_vl", "bradley_terry", lr="1e-9", shown="shown.png")
        run.train()
        still[name] = scores(run, 1)
    changed = [number for number, (one, other) in enumerate(zip(*still.values(), strict=True)) if one != other]
    assert changed == [2, 3, 6, 7]


def test_scores_are_ranked_as_scipy_ranks_them():
    pairs = torch.tensor([[1.0, 10.0], [2.0, 30.0], [2.0, 20.0], [5.0, 40.0]]).double()
    assert rank_correlation(pairs) == pytest.approx(0.9486832980505138)
    assert rank_correlation(pairs[:1]) == rank_correlation(torch.ones(3, 2)) == 0


def test_ties_are_learned_as_the_likeliest_outcome(files):
    run = judge(files, "llama", "bradley_terry", "algorithm.ties=rao_kupper")
    lines = [json.loads(line) | {"tie": True} for line in (files / "judged.jsonl").read_text().splitlines()]
    (files / "judged.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run.train()
    assert run.metrics[0]["val-core/kind0/reward/mean@2"] == 1  # untrained scores are nearly equal


def test_a_reward_model_judges_steps_where_they_end(files, tmp_path):
    run = judge(files, "llama", "process_reward", steps=2)
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
    assert step_ends("one\n\ntwo\n", "\n") == [4, 9]
    pieces = ["", " ", "on", "e\nt", "wo", ""]  # white space of a chat template, and an end token
    assert token_ends(lambda ids: "".join(pieces[token] for token in ids), range(6), "one\ntwo", [4, 7]) == [4, 5]


TEXTS = ["one\ntwo\nthree", "yes", "no\n\nno", "a\nb"]
PAID = {
    "reinforce": ["algorithm.whiten=false"], "grpo": ["algorithm.advantage=group_steps"],
    "ppo": ["algorithm.lam=1", "algorithm.whiten=false"],
}  # fmt: skip


@pytest.fixture(scope="module")
def step_judge(files):
    run = judge(files, "llama", "process_reward", "validation.before=false", "validation.every=null", steps=3)
    run.train()
    burnish("export", run.output, "--output", files / "step_judge")
    return files / "step_judge"


@pytest.mark.parametrize("name", PAID)
def test_a_step_is_paid_where_it_ends_and_what_comes_counts(name, files, step_judge):
    paid = f"rewards.steps={{name: reward_model, path: '{step_judge}', steps: each, weight: 2.0}}"
    options = ["rewards.odd=null", paid, "data.train_batch_size=1", "rollout.max_new_tokens=20"]
    run = TinyRun(
        files, "language", "llama", f"algorithm={name}", *options, *PAID[name], "trainer.mini_batch_size=null"
    )
    assembly = assemble(load(str(run.recipe), *run.options))
    model = assembly.roles.model

    def sample(job):
        trace = offline_completion(model, assembly.engine.encode(job.prompts), [model.response_ids(t) for t in TEXTS])
        return trace, [Response(text) for text in TEXTS]

    assembly.engine.sample = sample
    scored = assembly.source.collect(1)
    batch, _ = assembly.workers.credit(assembly.workers.annotate(scored))
    there = ~scored.step_rewards.isnan()
    ends = [[model.decode(ids[: place + 1].tolist()) for place in row.nonzero().flatten().tolist()]
            for ids, row in zip(scored.trace.ids, there, strict=True)]  # fmt: skip
    assert ends == [["one\n", "one\ntwo\n", "one\ntwo\nthree"], ["yes"], ["no\n", "no\n\nno"], ["a\n", "a\nb"]]
    rewards = scored.step_rewards.nan_to_num(0.0)
    torch.testing.assert_close(rewards.sum(1), scored.scores.reward)
    assert rewards[there].unique().numel() > 4
    if name == "grpo":  # steps are compared with all others of the group
        values = rewards[there]
        rewards = torch.zeros_like(rewards).masked_scatter(there, (values - values.mean()) / values.std())
    to_come = rewards.flip(1).cumsum(1).flip(1) * batch.mask
    found = batch.returns if name == "ppo" else batch.advantage
    torch.testing.assert_close(found, to_come, atol=1e-4, rtol=1e-4)


QUESTION = "Is this {prompt}?"


def grey(value, seed):
    """A picture of 24 x 16 pixels about as bright as that."""
    noise = np.random.default_rng(seed).integers(-20, 20, (16, 24, 3))
    return np.clip(value + noise, 0, 255).astype(np.uint8)


def of_pictures(files, algorithm, lines, *options):
    (files / "drawn.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return TinyRun(
        files, "reward_models", "qwen2_5_vl", f"algorithm={{name: {algorithm}, question: '{QUESTION}'}}",
        "data.train_files={files}/drawn.jsonl", "data.train_batch_size=6", "trainer.mini_batch_size=null",
        "data.max_pixels=256", *LEARNING, *options, name="pictures",
    )  # fmt: skip


@pytest.mark.parametrize("algorithm", ["bradley_terry", "score_regression"])
def test_it_scores_what_a_generator_draws_as_in_training(algorithm, files, tmp_path):
    for number in range(6):
        for name, value in (("dark", 40), ("bright", 210)):
            Image.fromarray(grey(value, number)).save(files / f"{name}{number}.png")
    pairs = [{"prompt": "ink", "chosen": f"dark{i}.png", "rejected": f"bright{i}.png"} for i in range(6)]
    single = [{"prompt": "ink", "image": f"{name}{i}.png", "score": score} for i in range(3)
              for name, score in (("dark", 1.0), ("bright", -1.0))]  # fmt: skip
    run = of_pictures(files, algorithm, pairs if algorithm == "bradley_terry" else single, "steps=6")
    run.train()
    burnish("export", run.output, "--output", tmp_path / "out")
    about = json.loads((tmp_path / "out" / "reward_head.json").read_text())
    assert (about["question"], about["max_pixels"]) == (QUESTION, 256)
    one = flow_reward("reward_model", path=str(tmp_path / "out"), batch_size=4)
    one.check([Prompt(text="ink")])
    drawn = [np.asarray(Image.open(files / f"{name}0.png")) for name in ("dark", "bright")]
    dark, bright = (verdict.value for verdict in one.score(drawn, [Prompt(text="ink")] * 2))
    assert dark > bright
    ours = [value for rows in scores(run, 6) for value in rows][:2]
    assert [dark, bright] == pytest.approx(ours, abs=2e-3)
    before = Prompt(text="ink", images=(Media.file(files / "bright1.png"),))
    assert one.score(drawn[:1], [before])[0].value != dark
    with pytest.raises(Exception, match="pictures"):
        reward("reward_model", path=str(tmp_path / "out")).check([Prompt(text="?")])
    with pytest.raises(Exception, match="path of reward"):
        flow_reward("reward_model", path=str(files / "qwen2_5_vl")).check([Prompt(text="?")])


NO_PAIRS = {
    "one": ({"prompt": "ink", "chosen": "0.png"}, "rejected"),
    "the same": ({"prompt": "ink", "chosen": "0.png", "rejected": "0.png"}, "chosen"),
    "no text": ({"prompt": ["ink"], "chosen": "0.png", "rejected": "1.png"}, "prompt"),
    "no prompt": ({"chosen": "0.png", "rejected": "1.png"}, "prompt"),
    "clips": ({"prompt": "ink", "chosen": "a.mp4", "rejected": "b.mp4"}, "'a.mp4'"),
    "several": ({"prompt": "ink", "chosen": "0.png", "rejected": ["1.png"]}, "'rejected'"),
    "no file": ({"prompt": "ink", "chosen": "a b c", "rejected": "1.png"}, "drawn.jsonl:1"),
}


@pytest.mark.parametrize("case", NO_PAIRS)
def test_what_is_no_pair_of_pictures_is_refused_with_its_place(case, files):
    line, name = NO_PAIRS[case]
    said = of_pictures(files, "bradley_terry", [line]).train(status=2)
    assert name in said.message
    assert "drawn.jsonl:1" in said.message
