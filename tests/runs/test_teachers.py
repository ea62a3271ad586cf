"""Teachers: what is compared with what, whom a prompt learns from, and teachers that servers have."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish import load
from burnish.language.teacher_inputs import with_hindsight
from burnish.rl.preference import another_success
from burnish.rl.surrogates import divergence, with_rest
from tests.support.http_servers import json_server
from tests.support.optional import seldom
from tests.support.tiny_run import TinyRun, burnish

INITIAL = {"weights": "initial"}
LABELS = ["odd", "even", "odd", "even"]
SHORT = ["validation.before=false", "validation.every=null", "rollout.n=2", "trainer.mini_batch_size=null",
         "data.label_key=label"]  # fmt: skip


@pytest.fixture(scope="module")
def teacher(files):
    """A teacher of other weights, and prompts with labels and hints."""
    burnish("tiny", "llama", files / "teacher")
    network = AutoModelForCausalLM.from_pretrained(files / "teacher")
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for value in network.parameters():
            value.add_(0.1 * torch.randn(value.shape, generator=draw))
    network.save_pretrained(files / "teacher")
    lines = [{"prompt": f"No. {i}?", "label": label, "hint": f"{i} it is."} for i, label in enumerate(LABELS)]
    (files / "taught.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"path": str(files / "teacher")}


def taught(files, teachers, *options, name="distill"):
    return TinyRun(
        files, "language", "llama", f"algorithm={name}", f"algorithm.teachers={json.dumps(teachers)}",
        f"data.train_files={files}/taught.jsonl", *SHORT, *options,
    )  # fmt: skip


def first_update(run):
    run.train("steps=1", "trainer.epochs=1")
    return run.metrics[-1]


@pytest.mark.parametrize("measure", ["reverse", "top_k", "sampled", "sdpo", "hint"])
def test_the_loss_is_the_divergence_at_the_students_own_tokens(measure, files, teacher):
    """As transformers alone computes both sides, by a plain forward of each row."""
    from burnish.tasks import assemble

    over = {"reverse": ["algorithm.divergence=reverse"], "top_k": ["algorithm.over=top_k", "algorithm.top_k=5"],
            "sampled": ["algorithm.over=sampled"], "sdpo": ["algorithm.top_k=5"],
            "hint": ["algorithm.divergence=reverse", "data.extra_keys=[hint]"]}[measure]  # fmt: skip
    own = measure == "sdpo"  # the policy teaches itself, behind a response that did well
    itself = {"sdpo": {"weights": "initial", "solution": 0.5}, "hint": {"weights": "initial", "prompt_key": "hint"}}
    taught_by = itself.get(measure, teacher)
    run = taught(files, [taught_by], *over, name="sdpo" if own else "distill")
    made = assemble(load(str(run.recipe), *run.options))
    batch, banned, teachers = made.source.rollout(1), made.roles.model.banned, made.roles.teachers
    asked = [one for (one,) in teachers.asked(batch)]
    seen = teachers.all[0].seen(asked, batch.trace)
    if measure == "hint":
        assert [one.text for one in asked] == [prompt.text[4:-1] + " it is." for prompt in batch.prompts]
    if own:
        assert with_hindsight(asked[seen.rows[0]], "", "No.").text.endswith(
            "as follows:\n\nNo.\n\nNow answer the question rightly."
        )
        assert 0 < len(seen.rows) < len(asked), "no other response did well"
        shown = another_success(batch.scores.reward, batch.group, batch.scores.missing, 0.5)
        for row in seen.rows.tolist():
            assert made.roles.model.decode(batch.trace.ids[shown[row]].tolist()) in asked[row].text
    if measure == "sampled":
        batch = made.workers.compute_advantages(made.workers.compute_logprobs(batch))[0]

    def log_probs(path, trace):
        network, found = AutoModelForCausalLM.from_pretrained(path).eval(), []
        parts = trace.prompts.rows()
        for row, length in enumerate(trace.length.tolist()):
            ids = torch.cat([parts.ids[row], trace.ids[row, :length]])
            with torch.no_grad():
                logits = network(input_ids=ids[None]).logits[0, len(parts.ids[row]) - 1 : -1]
            logits[:, banned] = -torch.inf
            found.append(logits.float().log_softmax(-1))
        return torch.cat(found)

    trace, path = batch.trace.select(seen.rows), files / taught_by.get("path", "llama")
    student, theirs = log_probs(files / "llama", trace), log_probs(path, seen.responses)
    if measure == "sampled":  # its advantage is what the teacher thinks more of a token
        expected = theirs.gather(-1, batch.trace.ids[batch.mask][:, None])[:, 0] - batch.trace.logprob[batch.mask]
        torch.testing.assert_close(batch.advantage[batch.mask], expected, rtol=1e-4, atol=1e-4)
        return
    if measure in ("top_k", "sdpo"):
        likely = (student if own else theirs).topk(5)[1]
        student, theirs = (with_rest(side.gather(-1, likely)) for side in (student, theirs))
    values = divergence(student, theirs, "jsd" if own else "reverse")
    per_response = [part.sum() / len(part) for part in values.split(trace.length.tolist())]
    expected = {float(values.mean()), float(torch.stack(per_response).mean())}
    metrics = first_update(run)
    assert any(metrics["actor/distill_loss"] == pytest.approx(one, rel=1e-3) for one in expected)
    assert metrics.get("actor/taught_ratio") == (len(seen.rows) / len(asked) if own else None)


def test_prompts_have_the_teachers_of_their_labels(files, teacher):
    whole = ["data.train_batch_size=4"]
    even = {"weights": "initial", "label": "even"}
    own = first_update(taught(files, [{"weights": "initial"}], *whole))["actor/distill_loss"]
    both = first_update(taught(files, [teacher | {"label": "odd"}, even], *whole))["actor/distill_loss"]
    twice = first_update(taught(files, [teacher | {"label": "odd", "weight": 2.0}, even], *whole))["actor/distill_loss"]
    assert own == pytest.approx(0, abs=1e-5)  # the policy is still what it was
    assert both > 1e-3
    assert twice == pytest.approx(2 * both, rel=1e-3)
    said = taught(files, [teacher | {"label": "odd"}]).train(status=2)
    assert "'No. 1?'" in said.message
    assert "'even'" in said.message


def test_a_tokenizer_that_differs_is_refused_before_weights_are_loaded_or_read_by_its_text(files, teacher, tmp_path):
    shutil.copytree(teacher["path"], tmp_path / "other")
    file = tmp_path / "other" / "tokenizer.json"
    tree = json.loads(file.read_text())
    vocabulary = tree["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(tree))
    said = taught(files, [{"path": str(tmp_path / "other")}]).train(status=2)
    assert "teachers[0].path" in said.message
    assert "Loading the model" not in said.err
    network, rows = AutoModelForCausalLM.from_pretrained(teacher["path"]), list(range(max(vocabulary.values()) + 1))
    rows[vocabulary["a"]], rows[vocabulary["b"]] = vocabulary["b"], vocabulary["a"]
    with torch.no_grad():
        for weight in {network.get_input_embeddings().weight, network.get_output_embeddings().weight}:
            weight[: len(rows)] = weight[rows]
    network.save_pretrained(tmp_path / "other")
    kinds = *({"path": str(path), "shared_weight": 0.7} for path in (teacher["path"], tmp_path / "other")), INITIAL
    found = [first_update(taught(files, [kind], name="gold"))["actor/distill_loss"] for kind in kinds]
    assert found[2] == pytest.approx(0, abs=1e-5), "itself, by its own tokens"
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    assert found[0] > 1e-4


@pytest.fixture
def server(teacher):
    """Answers as vLLM does, from a model of transformers."""
    model = AutoModelForCausalLM.from_pretrained(teacher["path"]).eval()
    served = SimpleNamespace(asked=[], fails=[], tokenizer=AutoTokenizer.from_pretrained(teacher["path"]), told=True)

    def reply(asked, count):
        if served.fails:  # codes that the next requests are answered with
            return served.fails.pop(), {"error": "busy"}
        served.asked.append(asked)
        with torch.no_grad():
            logprobs = model(input_ids=torch.tensor([asked["prompt"]])).logits[0].float().log_softmax(-1)
        told = [None]
        for place, own in enumerate(asked["prompt"][1:]):
            kept = [*logprobs[place].topk(asked["prompt_logprobs"]).indices.tolist(), own]
            decoded = {i: served.tokenizer.decode([i]) for i in kept}
            told.append({str(i): {"logprob": float(logprobs[place, i]), "decoded_token": decoded[i]} for i in kept})
        return 200, {"choices": [{"text": "", "prompt_logprobs": told if served.told else None}]}

    with json_server(reply, greeting={"data": [{"id": "teacher"}]}) as running:
        served.url = f"{running.url}/v1"
        yield served


@pytest.mark.parametrize(
    "options", [["algorithm.over=sampled"], *seldom(["algorithm.over=top_k", "algorithm.top_k=6"])]
)
def test_a_server_teaches_what_its_model_does(options, files, teacher, server):
    server.fails += [503] * ("sampled" in options[0])  # asked again
    rows = []
    for one in (teacher, {"url": server.url}):
        run = taught(files, [one], *options, "steps=2")
        run.train()
        rows.append(run.metrics[-1])
    assert rows[1] == pytest.approx(rows[0], rel=1e-3, abs=1e-4)
    assert {one["model"] for one in server.asked} == {"teacher"}
    asked = [(tuple(one["prompt"]), one["prompt_logprobs"]) for one in server.asked]
    assert len(asked) <= 1 + 2 * 4, "another pass over the same responses asks nothing"


def test_servers_that_can_not_teach_are_named(files, teacher, server):
    def refused(**more):
        return taught(files, [{"url": server.url} | more], "algorithm.over=sampled").train(status=2).message

    assert "token_variable is 'NO_SUCH_TOKEN'" in refused(token_variable="NO_SUCH_TOKEN")
    server.fails += [404]
    assert "404" in refused()
    server.told = False
    assert "prompt_logprobs" in refused()
