"""Reward models: what their heads read, what they learn, and that others read what is exported."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from burnish.config import load
from burnish.language.offline import token_ends
from burnish.rewards.judging import judge
from burnish.rewards.text.base import Response
from burnish.rewards.text.reward_model import step_ends
from burnish.tasks import assemble
from burnish.tasks.language.judgements import rank_correlation
from burnish.training.ranks import SINGLE_RANK
from burnish.utils.errors import ConfigError, UserError
from tests.support.asked import reward
from tests.support.language_runs import saved, weights
from tests.support.language_runs import trained as updates
from tests.support.rank_runs import together
from tests.support.reward_models import LABELS, assembly_of, exported, recipe_of, trained
from tests.support.tiny_language import picture


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reward_models")


def scores_of(assembly) -> list[list[float]]:
    """Of all responses of the held-out records, by the run's own networks."""
    found = assembly.evaluation(assembly).sampled(assembly.evaluation(assembly).job(1, None))
    return [judged.scores.flatten(1).tolist() for judged in found.samples]


def asked(assembly):
    """Responses and prompts of the held-out records."""
    rows = [(Response(text), record.prompt) for record in assembly.val_records for text in record.responses]
    return [list(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("family", ["llama", "qwen2_5_vl", "smolvlm"])
def test_a_score_is_the_head_on_the_state_of_the_last_token(folder, family):
    assembly = assembly_of(recipe_of(folder, family, "bradley_terry"))
    network, model = assembly.roles.model.network, assembly.roles.model
    record = assembly.val_records[0]  # without a picture: transformers needs no processor for it
    prompt = assembly.engine.encode([record.prompt]).table.ids[0]
    head = assembly.roles.reward_head.weight
    for text, score in zip(record.responses, scores_of(assembly)[0], strict=True):
        ids = torch.cat([prompt, torch.tensor(model.response_ids(text))])[None]
        plain = type(network).from_pretrained(folder / family)
        with torch.no_grad():
            states = plain(ids, attention_mask=torch.ones_like(ids), output_hidden_states=True).hidden_states[-1]
        assert score == pytest.approx((states[0, -1] @ head.T).tolist(), abs=1e-5)


@pytest.mark.slow
@pytest.mark.cluster
def test_ranks_that_judge_different_numbers_of_responses_agree(folder, tmp_path):
    """Three records on two ranks, one response after the other: the second rank has fewer turns at the network."""
    recipe = recipe_of(folder, "llama", "bradley_terry")
    options = ["trainer.micro_batch_tokens=1", "validation.max_prompts=3"]

    def evaluated(ranks, _):
        several = ["runtime=ray", "pools.train.processes=2"] if ranks.size > 1 else []
        return assemble(load(str(recipe), [*options, *several]), ranks).evaluate(None, n=1)

    both = together(evaluated, tmp_path, deadline=60)
    assert both[0] == both[1] == pytest.approx(evaluated(SINGLE_RANK, tmp_path))


def test_pictures_count_in_the_score(folder):
    assembly = assembly_of(recipe_of(folder, "qwen2_5_vl", "bradley_terry"))
    before = scores_of(assembly)
    shown = [number for number, record in enumerate(assembly.val_records) if record.prompt.images]
    path = folder / "shown.png"
    kept = path.read_bytes()
    picture(9, 24, 16).save(path)
    try:
        other = assembly_of(recipe_of(folder, "qwen2_5_vl", "bradley_terry"))
        picture(9, 24, 16).save(path)
        after = scores_of(other)
    finally:
        path.write_bytes(kept)
    assert shown
    assert [number for number, (a, b) in enumerate(zip(before, after, strict=True)) if a != b] == shown


@pytest.mark.parametrize("algorithm", sorted(LABELS))
def test_micro_batches_and_layouts_change_no_gradient(folder, algorithm):
    found = []
    for tokens, layout in ((4096, "shared"), (60, "packed"), (60, "padded")):
        recipe = recipe_of(folder, "qwen2_5_vl", algorithm)
        assembly = assembly_of(recipe, f"trainer.micro_batch_tokens={tokens}", f"trainer.layout={layout}")
        batch = assembly.source.collect(1)
        size = assembly.config.algorithm.size(batch)
        for part in assembly.config.algorithm.micro_batches(batch, tokens):
            (assembly.config.algorithm.loss(part, assembly.roles).total / size).backward()
        gradients = [value.grad for value in assembly.roles.parameters().values() if value.grad is not None]
        assert assembly.roles.reward_head.weight.grad.abs().max() > 0
        found.append(torch.cat([one.flatten() for one in gradients]))
    torch.testing.assert_close(found[1], found[0], atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(found[2], found[0], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("algorithm", sorted(LABELS))
def test_it_learns_the_labels_and_a_resumed_run_goes_on_bit_by_bit(folder, algorithm):
    recipe, more = recipe_of(folder, "qwen2_5_vl", algorithm), ["steps=20", "ema.decay=0.5", "optimizer.lr=5e-3"]
    whole = assembly_of(recipe, *more)
    rows = updates(whole, 1, 10)
    state = saved(whole.state_dict())
    rows += updates(whole, 11, 20)
    assert rows[-1]["actor/reward_loss"] < rows[0]["actor/reward_loss"] / 2
    resumed = assembly_of(recipe, *more)
    resumed.load_state_dict(state)
    again = updates(resumed, 11, 20)
    assert torch.equal(weights(resumed), weights(whole))
    assert "score.weight" in whole.roles.parameters()
    assert [row["actor/reward_loss"] for row in again] == [row["actor/reward_loss"] for row in rows[10:]]


@pytest.mark.parametrize(("family", "what"), [("llama", "merged"), ("llama", "lora"), ("qwen2_5_vl", "merged")])
def test_what_is_exported_gives_the_same_scores_in_burnish_and_in_transformers(folder, tmp_path, family, what):
    import peft
    from transformers import AutoModelForSequenceClassification

    lora = {"lora": {"rank": 2}} if what == "lora" else {}
    assembly = assembly_of(recipe_of(folder, family, "bradley_terry", model=lora, options={"heads": ["a", "b"]}))
    updates(assembly, 1, 2)
    ours = scores_of(assembly)
    target = exported(assembly, tmp_path / "out", what)
    if what == "merged":
        one = reward("reward_model", path=str(target), heads={"a": 1.0, "b": 0.5}, batch_size=3)
        responses, prompts = asked(assembly)
        one.check(prompts)
        theirs = [verdict.value for verdict in judge(one, responses, prompts)]
        flat = [score for record in ours for score in record]
        assert theirs == pytest.approx([a + 0.5 * b for a, b in flat], abs=1e-5)
        assert (target / "reward_head.json").is_file()
    if family == "llama":
        base = target if what == "merged" else folder / family
        network = AutoModelForSequenceClassification.from_pretrained(base, num_labels=2)
        if what == "lora":
            network = peft.PeftModel.from_pretrained(network, target)
        record = assembly.val_records[0]
        prompt = assembly.engine.encode([record.prompt]).table.ids[0]
        response = torch.tensor(assembly.roles.model.response_ids(record.responses[0]))
        with torch.no_grad():
            logits = network(torch.cat([prompt, response])[None]).logits[0]
        torch.testing.assert_close(logits, torch.tensor(ours[0][0]), atol=1e-5, rtol=1e-4)


def test_an_adapter_of_a_model_without_a_classifier_lies_beside_its_head(folder, tmp_path):
    from safetensors.torch import load_file

    assembly = assembly_of(recipe_of(folder, "qwen2_5_vl", "bradley_terry", model={"lora": {"rank": 2}}))
    updates(assembly, 1, 1)
    target = exported(assembly, tmp_path / "out", "lora")
    torch.testing.assert_close(
        load_file(target / "reward_head.safetensors")["score.weight"], assembly.roles.reward_head.weight.detach()
    )
    lines = assembly.loading_lines(folder, target)
    assert "reward_head.safetensors" in lines[2]


def test_validation_reports_agreement_by_source_and_keeps_what_was_judged(folder):
    recipe = recipe_of(folder, "llama", "bradley_terry", options={"heads": ["truth", "style"]})
    metrics = trained(recipe, "optimizer.lr=5e-3", "steps=12", "validation.every=0")
    assert metrics["val-core/kind0/reward/mean@2"] == metrics["val-aux/kind0/accuracy/mean@2"] == 1
    assert metrics["val-aux/kind1/accuracy_style/mean@2"] == 1
    assert metrics["val-aux/missing"] == 0
    run = folder / "run-llama-bradley_terry"
    kept = [json.loads(line) for line in (run / "validation/000012/samples.jsonl").read_text().splitlines()]
    assert kept[0]["response"].startswith("chosen ")
    assert "rejected" in kept[0]["response"]
    assert "Judged as people did" in (run / "report.html").read_text()


def test_ties_are_learned_as_the_likeliest_outcome(folder):
    assembly = assembly_of(recipe_of(folder, "llama", "bradley_terry", options={"ties": "rao_kupper"}))
    records = [replace(record, target=((0.0,),)) for record in assembly.val_records]
    assembly.__dict__["val_records"] = records
    found = assembly.evaluation(assembly).sampled(assembly.evaluation(assembly).job(1, None))
    assert found.scores.reward.tolist() == [1.0] * len(records)  # untrained scores are nearly equal


def test_scores_are_ranked_as_people_did(folder):
    recipe = recipe_of(folder, "llama", "score_regression")
    metrics = trained(recipe, "optimizer.lr=5e-3", "steps=15", "validation.every=0")
    assert metrics["val-aux/rank_correlation/reward"] > 0.8
    pairs = torch.tensor([[1.0, 10.0], [2.0, 30.0], [2.0, 20.0], [5.0, 40.0]]).double()
    assert rank_correlation(pairs) == pytest.approx(0.9486832980505138)  # scipy.stats.spearmanr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["rewards.exact.weight=1"], "trains a reward model, and nothing is sampled"),
        (["rollout.n=4"], "rollout.n is given, but bradley_terry samples nothing"),
        (["validation.n=4"], "validation.n is given"),
        (["scoring.processes=2"], "scoring.processes is given"),
        (["algorithm.ties=rao_kupper", "algorithm.tie_strength=1"], "with rao_kupper it must be above 1"),
        (["algorithm.tie_strength=2"], "never read when ties is null"),
        (["algorithm.heads=[a, a]"], "names one twice"),
    ],
)
def test_options_without_a_use_are_refused(folder, given, message):
    with pytest.raises(ConfigError, match=message):
        load(str(recipe_of(folder, "llama", "bradley_terry")), given)


def test_a_reward_model_judges_steps_where_they_end(folder, tmp_path):
    recipe = recipe_of(folder, "qwen2_5_vl", "process_reward")
    assembly = assembly_of(recipe)
    updates(assembly, 1, 2)
    found = assembly.evaluation(assembly).sampled(assembly.evaluation(assembly).job(1, None))
    ours = [judged.scores[0, : len(judged.record.target), 0].sigmoid().tolist() for judged in found.samples]
    target = exported(assembly, tmp_path / "out")
    responses, prompts = asked(assembly)
    each = judge(reward("reward_model", path=str(target), steps="each"), responses, prompts)
    for verdict, record, values in zip(each, assembly.val_records, ours, strict=True):
        assert [end for end, _ in verdict.steps] == list(record.ends)
        assert [value for _, value in verdict.steps] == pytest.approx(values, abs=1e-5)
        assert verdict.value == pytest.approx(sum(values), abs=1e-5)
    for name, total in (("min", min), ("last", lambda some: some[-1])):
        (one, *_) = judge(reward("reward_model", path=str(target), steps=name), responses[:1], prompts[:1])
        assert one.value == pytest.approx(total(ours[0]), abs=1e-5)
    (empty,) = judge(reward("reward_model", path=str(target)), [Response(" \n")], prompts[:1])
    assert empty.value is None
    assert empty.note == "it has no step to judge"


def test_ends_of_steps_are_those_of_the_text():
    assert step_ends("one\n\ntwo\n", "\n") == [4, 9]
    assert step_ends("one", "\n") == [3]
    pieces = ["", " ", "on", "e\nt", "wo", ""]  # white space of a chat template, and an end token
    decode = lambda ids: "".join(pieces[token] for token in ids)  # noqa: E731
    assert token_ends(decode, range(6), "one\ntwo", [4, 7]) == [4, 5]


def test_heads_and_steps_that_a_model_lacks_are_refused(folder, tmp_path):
    assembly = assembly_of(recipe_of(folder, "llama", "bradley_terry"))
    target = exported(assembly, tmp_path / "out")
    _, prompts = asked(assembly)
    with pytest.raises(UserError, match=r"has 'truth', but .* has reward"):
        reward("reward_model", path=str(target), heads={"truth": 1.0}).check(prompts)
    with pytest.raises(UserError, match="judges whole responses"):
        reward("reward_model", path=str(target), steps="each").check(prompts)
    with pytest.raises(ValueError, match="put_away is true, but device is cpu"):
        reward("reward_model", path=str(target), put_away=True)
    (target / "reward_head.json").write_text("{")
    with pytest.raises(UserError, match="export the reward model again"):
        reward("reward_model", path=str(target)).check(prompts)
