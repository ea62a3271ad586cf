"""Teachers: what is compared with what, whom a prompt learns from, and which teachers are refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.config import load
from burnish.config.disk import check_disk
from burnish.losses.divergence import divergence, sampled_advantage, with_rest
from burnish.models.language.loading import load_language_model
from burnish.options.language import LanguageModelOptions
from burnish.tasks import assemble
from burnish.utils.errors import ConfigError, UserError
from tests.support.http_servers import json_server
from tests.support.language_runs import trained
from tests.support.language_samples import folder_of
from tests.support.tiny_recipes import language_recipe, write_lines, write_recipe, write_rewards

SMALL = ["model.device=cpu", "validation.every=null", "validation.before=false", "optimizer.warmup_steps=0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A student, a teacher of another size and other weights, records, and recipes for both kinds of models."""
    folder = tmp_path_factory.mktemp("teachers")
    write_rewards(folder)
    for family in ("llama", "qwen2_5_vl"):
        shutil.copytree(folder_of(family), folder / family)
    teacher = load_language_model(LanguageModelOptions(path=str(folder / "llama"), device="cpu"))
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for value in teacher.network.parameters():
            value.add_(0.1 * torch.randn(value.shape, generator=draw))
    teacher.save(folder / "teacher", teacher.network.state_dict())
    records = [
        {"prompt": f"No. {number}?", "label": label, "hint": f"No. {number}? It is {number}."}
        for number, label in enumerate(["odd", "even", "odd", "even"])
    ]
    write_lines(folder / "llama-prompts.jsonl", records)
    write_recipe(folder / "llama.yaml", language_recipe(folder, "llama"))
    return folder


def assembly_of(folder, teachers, *given, steps=3):
    overrides = [
        "algorithm=distill", f"algorithm.teachers={json.dumps(teachers)}", "rollout.n=2", "data.label_key=label",
        "data.extra_keys=[hint]", f"output_dir={folder / 'run'}", f"steps={steps}", *SMALL, *given,
    ]  # fmt: skip
    config = load(str(folder / "llama.yaml"), overrides)
    check_disk(config)
    assembly = assemble(config)
    assembly.check_data()
    return assembly


def collected(assembly):
    """Responses of the first update, annotated and credited."""
    scored = assembly.source.collect(1)
    annotated = assembly.workers.annotate(scored)
    return assembly.config.algorithm.credit(annotated)[0]


def log_probs(model, batch, prompts=None):
    """A network's log-probs of all tokens [R, V], by a plain forward of each row alone."""
    found = []
    for row, prompt in enumerate(prompts or batch.prompts):
        own = model.encode(prompt.chat())
        length = int(batch.trace.length[row])
        ids = torch.cat([own.ids[0], batch.trace.ids[row, :length]])
        plain = AutoModelForCausalLM.from_pretrained(model.path).eval()
        plain.load_state_dict(dict(model.network.state_dict().items()), strict=False)
        with torch.no_grad():
            logits = plain(input_ids=ids[None]).logits[0, own.lengths[0] - 1 : -1]
        logits[:, model.banned] = -torch.inf
        found.append(logits.float().log_softmax(-1))
    return torch.cat(found)


@pytest.mark.parametrize(
    ("given", "measure"),
    [
        (["algorithm.divergence=reverse"], lambda s, t: divergence(s, t, "reverse")),
        (["algorithm.divergence=forward"], lambda s, t: divergence(s, t, "forward")),
        (["algorithm.divergence=jsd", "algorithm.jsd_mix=0.3"], lambda s, t: divergence(s, t, "jsd", mix=0.3)),
        (
            ["algorithm.over=top_k", "algorithm.top_k=5"],
            lambda s, t: divergence(with_rest(s.gather(-1, t.topk(5)[1])), with_rest(t.topk(5)[0]), "reverse"),
        ),
    ],
)
def test_the_loss_is_the_divergence_at_the_students_own_tokens(folder, given, measure):
    assembly = assembly_of(folder, [{"path": str(folder / "teacher")}], "model.lora=null", *given)
    batch = collected(assembly)
    loss = assembly.config.algorithm.loss(batch, assembly.roles)
    teacher = load_language_model(LanguageModelOptions(path=str(folder / "teacher"), device="cpu"))
    apart = measure(log_probs(assembly.roles.model, batch), log_probs(teacher, batch))
    total, count = loss.metrics["actor/distill_loss"]
    assert int(count) == int(batch.mask.sum())
    torch.testing.assert_close(float(total), float(assembly.config.algorithm.total(scattered(batch, apart), batch)),
                               rtol=1e-4, atol=1e-5)  # fmt: skip
    loss.total.backward()
    assert any(value.grad is not None and value.grad.any() for value in assembly.roles.parameters().values())


def scattered(batch, values):
    return torch.zeros(batch.mask.shape).masked_scatter(batch.mask, values)


@pytest.mark.parametrize("given", [["algorithm.over=full"], ["algorithm.over=top_k", "algorithm.top_k=8"]])
def test_the_student_approaches_its_teacher(folder, given):
    assembly = assembly_of(
        folder, [{"path": str(folder / "teacher")}], "model.lora=null", "optimizer.lr=3e-3", *given, steps=12
    )
    rows = trained(assembly, 1, 12)
    assert rows[-1]["actor/distill_loss"] < 0.75 * rows[0]["actor/distill_loss"]


def test_a_sampled_token_has_the_advantage_of_the_teachers_log_prob(folder):
    assembly = assembly_of(folder, [{"path": str(folder / "teacher")}], "algorithm.over=sampled")
    batch = collected(assembly)
    teacher = load_language_model(LanguageModelOptions(path=str(folder / "teacher"), device="cpu"))
    chosen = log_probs(teacher, batch).gather(-1, batch.trace.ids[batch.mask][:, None])[:, 0]
    torch.testing.assert_close(
        batch.advantage[batch.mask], chosen - batch.trace.logprob[batch.mask], rtol=1e-4, atol=1e-4
    )


def test_the_sampled_advantage_descends_the_divergence():
    """The expectation over tokens of advantage x grad log s is minus the gradient of the divergence."""
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(7, generator=draw, dtype=torch.float64).requires_grad_()
    teacher = torch.randn(7, generator=draw, dtype=torch.float64).log_softmax(0)
    for kind in ("reverse", "forward"):
        student = logits.log_softmax(0)
        worth = sampled_advantage(student, teacher, kind).detach()
        (found,) = torch.autograd.grad((student.exp().detach() * worth * student).sum(), logits, retain_graph=True)
        (exact,) = torch.autograd.grad(divergence(student, teacher, kind), logits)
        torch.testing.assert_close(found, -exact)


def test_prompts_have_the_teachers_of_their_labels(folder):
    both = [{"path": str(folder / "teacher"), "label": "odd", "weight": 2.0}, {"weights": "initial", "label": "even"}]
    assembly = assembly_of(folder, both, "data.train_batch_size=4", "model.lora=null")
    batch = collected(assembly)
    _, apart = assembly.roles.teachers.compare(batch.prompts, batch.trace, assembly.config.algorithm._measure, 64)
    odd = torch.tensor([prompt.label == "odd" for prompt in batch.prompts])
    assert (apart[~odd].abs() < 1e-5).all()  # the policy is still what it was
    assert (apart[odd & batch.mask.any(1)].sum(1) > 0).all()
    with pytest.raises(UserError, match=r"no teacher is for prompt 'No\. 1\?'.*with label 'even'"):
        assembly_of(folder, both[:1])


def test_the_policy_teaches_itself_with_a_longer_prompt(folder):
    assembly = assembly_of(folder, [{"prompt_key": "hint"}])
    batch = collected(assembly)
    loss = assembly.config.algorithm.loss(batch, assembly.roles)
    model = assembly.roles.model
    plain = load_language_model(LanguageModelOptions(path=str(model.path), device="cpu"))
    longer = [replace(prompt, text=prompt.info["hint"]) for prompt in batch.prompts]
    apart = divergence(log_probs(plain, batch), log_probs(plain, batch, longer), "reverse")
    expected = float(assembly.config.algorithm.total(scattered(batch, apart), batch))
    assert float(loss.metrics["actor/distill_loss"][0]) == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert expected > 1e-3
    loss.total.backward()
    assert any(value.grad is not None for value in assembly.roles.parameters().values())
    with pytest.raises(ConfigError, match=r"teachers\[0\]\.prompt_key is answers.*data\.extra_keys"):
        assembly_of(folder, [{"prompt_key": "answers"}])


def test_teachers_mix_with_rewards(folder):
    alone, mixed = (
        collected(assembly_of(folder, [{"path": str(folder / "teacher")}], f"algorithm.reward_coef={coef}"))
        for coef in (0, 0.5)
    )
    assert not alone.advantage.any()
    assert mixed.advantage.any()


@pytest.mark.parametrize(
    ("teachers", "said"),
    [
        ([{}], "is the student itself"),
        ([{"path": "a/b", "url": "http://x/v1"}], "either a path or a url"),
        ([{"path": "x", "weights": "initial"}], "weights is of the policy itself"),
        ([{"url": "x:8000"}], "must begin with http"),
        ([{"url": "http://me:secret@x/v1"}], "would be saved; use token_variable"),
        ([{"path": "x", "token_variable": "X"}], "token_variable is X, which is never read without url"),
        ([{"path": "nowhere"}], r"algorithm\.teachers\[0\]\.path is nowhere"),
        ([{"url": "http://127.0.0.1:1/v1"}], "over is full, but a server"),
    ],
)
def test_teachers_that_can_not_teach_are_refused(folder, teachers, said):
    with pytest.raises((ConfigError, UserError), match=said):
        assembly_of(folder, teachers)


def test_a_tokenizer_that_differs_is_refused_before_weights_are_loaded(folder, tmp_path):
    shutil.copytree(folder / "teacher", tmp_path / "other")
    file = tmp_path / "other" / "tokenizer.json"
    tree = json.loads(file.read_text())
    vocabulary = tree["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(tree))
    with pytest.raises(UserError, match=r"teachers\[0\]\.path is .*whose tokenizer is another one: of 256 tokens 2"):
        assembly_of(folder, [{"path": str(tmp_path / "other")}])


@pytest.fixture
def server(folder, monkeypatch):
    """Answers as vLLM does, from a model of transformers."""
    monkeypatch.setattr("burnish.tasks.language.served.PAUSE", 0.01)
    model = AutoModelForCausalLM.from_pretrained(folder / "teacher").eval()
    served = SimpleNamespace(asked=[], fails=[], tokenizer=AutoTokenizer.from_pretrained(folder / "teacher"))

    def reply(asked, count):
        if served.fails:  # codes that the next requests are answered with
            return served.fails.pop(), {"error": "busy"}
        served.asked.append(asked)
        ids = torch.tensor([asked["prompt"]])
        with torch.no_grad():
            logprobs = model(input_ids=ids).logits[0].float().log_softmax(-1)
        told = [None]
        for place, own in enumerate(asked["prompt"][1:]):
            kept = [*logprobs[place].topk(asked["prompt_logprobs"]).indices.tolist(), own]
            decoded = {i: served.tokenizer.decode([i]) for i in kept}
            told.append({str(i): {"logprob": float(logprobs[place, i]), "decoded_token": decoded[i]} for i in kept})
        return 200, {"choices": [{"text": "", "prompt_logprobs": told}]}

    with json_server(reply, greeting={"data": [{"id": "teacher"}]}) as running:
        yield served, f"{running.url}/v1"


@pytest.mark.parametrize("over", ["top_k", "sampled"])
def test_a_server_teaches_what_its_model_does(folder, server, over):
    served, url = server
    given = [f"algorithm.over={over}", *(["algorithm.top_k=6"] if over == "top_k" else [])]
    found = []
    for teacher in ({"path": str(folder / "teacher")}, {"url": url}):
        assembly = assembly_of(folder, [teacher], *given)
        batch = collected(assembly)
        loss = assembly.config.algorithm.loss(batch, assembly.roles)
        found.append((float(loss.total), batch.advantage))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-3, abs=1e-5)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-3, atol=1e-4)
    assert {one["model"] for one in served.asked} == {"teacher"}
    before = len(served.asked)
    assembly.config.algorithm.loss(batch, assembly.roles)  # another pass over the same responses
    assert len(served.asked) == before


def test_a_server_that_is_busy_is_asked_again_and_one_that_refuses_is_named(folder, server, monkeypatch):
    served, url = server
    served.fails += [503, 429]
    collected(assembly_of(folder, [{"url": url}], "algorithm.over=sampled"))
    with pytest.raises(UserError, match=r"token_variable is NO_SUCH_TOKEN, which is not set"):
        collected(assembly_of(folder, [{"url": url, "token_variable": "NO_SUCH_TOKEN"}], "algorithm.over=sampled"))
    served.fails += [404]
    with pytest.raises(UserError, match=r"teachers\[0\]\.url is .*does not answer /completions: status 404 .*busy"):
        collected(assembly_of(folder, [{"url": url}], "algorithm.over=sampled"))
    with pytest.raises(ConfigError, match="servers return log-probs at temperature 1"):
        assembly_of(folder, [{"url": url}], "algorithm.over=sampled", "rollout.temperature=0.7")
    monkeypatch.setattr(served, "tokenizer", SimpleNamespace(decode=lambda ids: "x"))
    with pytest.raises(UserError, match=r"reads token \d+ as 'x', but model\.path as .*its tokenizer is another"):
        collected(assembly_of(folder, [{"url": url}], "algorithm.over=sampled"))
