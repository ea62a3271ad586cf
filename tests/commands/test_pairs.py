"""Data of kept samples: what becomes a record, what does not, and that training reads it as it is."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from burnish.commands.pairs import pairs
from burnish.commands.train import train
from burnish.config import load
from burnish.data.flow.pictures import read_pictures
from burnish.data.language.responses import read_responses
from burnish.options.flow import PromptOptions
from burnish.options.language import LanguageDataOptions
from burnish.utils.errors import ConfigError, UserError


def kept(run, name, records, **about):
    folder = run / "samples" / name
    folder.mkdir(parents=True)
    lines = []
    for number, record in enumerate(records):
        if "response" not in record:
            record = {"file_name": f"{number:03d}.png"} | record
            shade = record.pop("shade", number * 20)
            Image.fromarray(np.full((16, 32, 3), shade, np.uint8)).save(folder / f"{number:03d}.png")
        whole = {"prompt": "the number 472", "update": 1, "sample": number, "components": {"ocr": record["reward"]}}
        lines.append(json.dumps(whole | about | record) + "\n")
    (folder / "records.jsonl").write_text("".join(lines))


def made(run, output="out", by="reward", margin=0.0, most=1, form="pairs", **more):
    assert pairs(str(run), output=str(run / output), by=by, margin=margin, most=most, form=form, **more) == 0
    return [json.loads(line) for line in (run / output / f"{form}.jsonl").read_text().splitlines()]


def rewards(*values):
    return [{"reward": value} for value in values]


def said(text, reward, **more):
    return {"response": text, "finished": True, "turns": 1, "reward": reward} | more


def test_the_best_is_paired_with_the_worst_and_the_second_with_the_second(tmp_path):
    kept(tmp_path, "a", rewards(0.2, 0.9, 0.5, 0.7, 0.1))
    found = made(tmp_path, most=9)
    assert [(one["chosen_reward"], one["rejected_reward"]) for one in found] == [(0.9, 0.1), (0.7, 0.2)]
    assert found[0]["margin"] == pytest.approx(0.8)
    assert found[0]["chosen"] == "media/a-001.png"
    assert len(made(tmp_path, "one")) == 1
    assert len(made(tmp_path, "wide", margin=0.6, most=9)) == 1


def test_what_prefers_nothing_is_left_out_and_counted(tmp_path, capsys):
    kept(tmp_path, "equal", rewards(0.5, 0.5))
    kept(tmp_path, "missing", rewards(None, 0.5, None))
    kept(tmp_path, "same picture", [{"reward": 1.0, "shade": 7}, {"reward": 0.0, "shade": 7}])
    with pytest.raises(UserError, match=r"no pair comes of 3 prompts .*samples without a reward \(2\)"):
        made(tmp_path, "none")
    kept(tmp_path, "good", rewards(1.0, 0.0))
    assert len(made(tmp_path)) == 1
    assert "left out: prompts of equal rewards (3)" in capsys.readouterr().out


def test_responses_that_were_cut_and_dialogues_make_no_pairs(tmp_path):
    kept(
        tmp_path, "a", [said("yes", 0.1), said("cut", 0.9, finished=False), said("long", 0.0, turns=3), said("y", 0.5)]
    )
    (pair,) = made(tmp_path)
    assert (pair["chosen"], pair["rejected"]) == ("y", "yes")


def test_a_component_may_decide(tmp_path):
    kept(tmp_path, "a", [{"reward": 1.0, "components": {"ocr": 0.1}}, {"reward": 0.0, "components": {"ocr": 0.8}}])
    assert made(tmp_path, by="ocr")[0]["chosen"] == "media/a-001.png"
    with pytest.raises(UserError, match="it has reward, ocr"):
        made(tmp_path, "other", by="clip")


def test_the_best_samples_are_there_to_be_imitated(tmp_path, capsys):
    kept(tmp_path, "a", rewards(0.2, 0.9, 0.5, 0.7))
    kept(tmp_path, "b", rewards(0.2, 0.3), prompt="another")
    kept(tmp_path, "c", [{"reward": 1.0, "shade": 20}])  # the same picture of the same prompt again
    found = made(tmp_path, form="sft", most=2, least=0.6)
    assert [(one["reward"], one["image"]) for one in found] == [(0.9, "media/a-001.png"), (0.7, "media/a-003.png")]
    said = capsys.readouterr().out
    assert "2 samples to imitate of 3 prompts" in said
    assert "left out: prompts whose best samples score below 0.6 (1)" in said
    assert "left out: samples that came again (1)" in said
    assert len(read_pictures(str(tmp_path / "out" / "sft.jsonl"), "pictures", size=None, keys=PromptOptions())) == 2


def test_every_sample_has_its_score(tmp_path):
    kept(tmp_path, "a", [said("yes", 0.25), said("cut", 0.9, finished=False), said("no", 1.0)])
    found = made(tmp_path, form="scores", most=None)
    assert [(one["prompt"], one["response"], one["score"]) for one in found] == [
        ("the number 472", "no", 1.0), ("the number 472", "yes", 0.25),
    ]  # fmt: skip


def test_samples_of_validations(tmp_path):
    kept(tmp_path, "a", rewards(0.0, 1.0))
    with pytest.raises(UserError, match=r"no validation_samples: .*validation\.save\.prompts=64"):
        made(tmp_path, validation=True)
    (tmp_path / "samples").rename(tmp_path / "validation_samples")
    assert len(made(tmp_path, validation=True)) == 1


@pytest.mark.parametrize(
    ("options", "option"), [({"form": "sft", "margin": 0.1}, "margin"), ({"least": 0}, "at-least")]
)
def test_what_a_form_never_reads_is_refused(tmp_path, options, option):
    with pytest.raises(UserError, match=f"--{option} is read by"):
        made(tmp_path, **options)


def test_foreign_records_lead_nowhere(tmp_path):
    (tmp_path / "secret.png").write_bytes(b"secret")
    kept(tmp_path, "good", rewards(1.0, 0.0))
    for number, change in enumerate((
        {"file_name": "../../secret.png"}, {"images": ["../../secret.png"]}, {"inputs": '{"mask": "/etc/passwd"}'},
        {"inputs": "[" * 5000}, {"reward": "much"}, {"components": 3}, {"prompt": None},
    )):  # fmt: skip
        kept(tmp_path, f"bad{number}", [{"reward": 1.0} | change, {"reward": 0.0} | change])
    linked = tmp_path / "samples" / "linked"
    kept(tmp_path, "linked", rewards(1.0, 0.0))
    (linked / "000.png").unlink()
    (linked / "000.png").symlink_to(tmp_path / "secret.png")
    assert [one["chosen"] for one in made(tmp_path)] == ["media/good-000.png"]
    assert not list((tmp_path / "out").rglob("*secret*"))


@pytest.mark.parametrize(("folder", "message"), [("nothing", "kept no samples"), ("", "has pairs.jsonl")])
def test_refusals(tmp_path, folder, message):
    kept(tmp_path, "a", rewards(1.0, 0.0))
    made(tmp_path)
    with pytest.raises(UserError, match=message):
        pairs(str(tmp_path / folder), output=str(tmp_path / "out"), by="reward", margin=0, most=1)


def test_pictures_and_responses_are_read_as_they_are(tmp_path):
    drawn, spoken = tmp_path / "drawn", tmp_path / "spoken"
    inputs = {"images": ["000.png"], "inputs": '{"mask_image": "001.png"}', "negative_prompt": "blur"}
    kept(drawn, "a", rewards(1.0, 0.0, 0.5), **inputs)
    made(drawn)
    (record,) = read_pictures(str(drawn / "out" / "pairs.jsonl"), "pairs", size=(16, 32), keys=PromptOptions())
    assert record.prompt.negative == "blur"
    assert len(record.prompt.images) == 1
    assert [name for name, _ in record.prompt.inputs] == ["mask_image"]
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Which <image> is it?"}]}]
    kept(spoken, "a", [said("4", 1.0), said("5", 0.0)], messages=json.dumps(messages), images=["shown.png"])
    Image.new("RGB", (8, 8)).save(spoken / "samples" / "a" / "shown.png")
    made(spoken)
    (pair,) = read_responses(str(spoken / "out" / "pairs.jsonl"), LanguageDataOptions(train_files="-"), "preferences")
    assert pair.prompt.turns[0].text == "Which <image> is it?"
    assert len(pair.prompt.images) == 1


SMALL = ["steps=1", "validation.every=null", "validation.before=false", "scoring.processes=0", "checkpoint.every=1"]
VALIDATED = [one for one in SMALL if not one.startswith("validation.every")] + ["validation.every=1"]
KEEP = [*SMALL, "rollout.save.every=1", "rollout.save.prompts=2", "data.train_batch_size=2", "rollout.n=6"]


def run(recipe, output, options):
    assert train(load(recipe, [*options, f"output_dir={output}"])) == 0
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()][-1]


@pytest.mark.slow
def test_diffusion_dpo_learns_from_the_pairs_of_a_run(tmp_path):
    run("quickstart", tmp_path / "run", [*KEEP, "validation.reference_guidance=null"])
    assert made(tmp_path / "run", "out", most=3)
    metrics = run("quickstart", tmp_path / "dpo", [
        *SMALL, "algorithm=diffusion_dpo", "algorithm.online=false", "validation.reference_guidance=null",
        f"data.train_files={tmp_path / 'run' / 'out'}", "data.train_batch_size=1",
    ])  # fmt: skip
    assert metrics["actor/loss"] > 0
    assert metrics["actor/grad_norm"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["dpo", "bradley_terry"])
def test_dpo_and_reward_models_learn_from_the_pairs_of_a_run(tmp_path, algorithm):
    run("vlm_quickstart", tmp_path / "run", [*KEEP, "trainer.mini_batch_size=null", "optimizer.warmup_steps=0"])
    assert made(tmp_path / "run", "out", most=3)
    given = [*SMALL, "algorithm.online=false"]
    if algorithm != "dpo":  # which scores nothing
        given = [one for one in SMALL if "scoring" not in one]
    metrics = run("vlm_quickstart", tmp_path / algorithm, [
        *given, f"algorithm={algorithm}", "optimizer.warmup_steps=0", "data.train_batch_size=1",
        f"data.train_files={tmp_path / 'run' / 'out'}",
    ])  # fmt: skip
    assert metrics["actor/grad_norm"] > 0


@pytest.mark.slow
@pytest.mark.thorough
def test_sft_learns_from_the_best_pictures_of_training_and_of_validation(tmp_path):
    run("quickstart", tmp_path / "run", [
        *VALIDATED, *KEEP[len(SMALL):], "validation.reference_guidance=null", "validation.n=1",
        "validation.max_prompts=3", "validation.save.prompts=2",
    ])  # fmt: skip
    validated = [json.loads(line) for line in (tmp_path / "run/validation_samples/metadata.jsonl").open()]
    assert [(one["update"], one["group"], one["version"]) for one in validated] == [(1, 0, 1), (1, 1, 1)]
    assert {one["purpose"] for one in validated} == {"validation"}
    for number, validation in enumerate((False, True)):
        name = f"out{number}"
        assert made(tmp_path / "run", name, form="sft", most=2, validation=validation)
        metrics = run("quickstart", tmp_path / f"sft{number}", [
            *SMALL, "algorithm=sft", "validation.reference_guidance=null", "data.train_batch_size=1",
            f"data.train_files={tmp_path / 'run' / name}",
        ])  # fmt: skip
        assert metrics["actor/grad_norm"] > 0


@pytest.mark.slow
def test_sft_and_reward_models_learn_from_the_responses_of_a_run(tmp_path):
    run("vlm_quickstart", tmp_path / "run", [
        *VALIDATED, *KEEP[len(SMALL):], "trainer.mini_batch_size=null", "optimizer.warmup_steps=0",
        "validation.max_prompts=2", "validation.save.most_mb=9",
    ])  # fmt: skip
    validated = [json.loads(line) for line in (tmp_path / "run/validation_samples/metadata.jsonl").open()]
    assert all(isinstance(one["response"], str) and one["answer"] is not None for one in validated)
    judging = [one for one in SMALL if "scoring" not in one]  # nothing is sampled, and nothing scored
    judging += ["rewards.format=null", "rewards.exact=null", "trainer.mini_batch_size=null"]
    for algorithm, form, given in (("sft", "sft", SMALL), ("score_regression", "scores", judging)):
        assert made(tmp_path / "run", form, form=form, most=None)
        metrics = run("vlm_quickstart", tmp_path / algorithm, [
            *given, f"algorithm={algorithm}", "optimizer.warmup_steps=0", "data.train_batch_size=1",
            *(f"data.{files}={tmp_path / 'run' / form / f'{form}.jsonl'}" for files in ("train_files", "val_files")),
        ])  # fmt: skip
        assert metrics["actor/grad_norm"] > 0


@pytest.mark.parametrize(
    ("recipe", "given", "message"),
    [
        ("vlm_quickstart", ["algorithm=bradley_terry", "validation.save.every=2"],
         "validation.save is given, but bradley_terry samples nothing"),
        ("quickstart", ["validation.every=null", "validation.before=false", "validation.save.every=2"],
         "validation.save is given, but nothing is validated"),
        ("quickstart", ["algorithm=diffusion_dpo", "algorithm.online=false", "rollout.save.every=1"],
         "rollout.save is given, but diffusion_dpo samples nothing"),
        ("vlm_quickstart", ["algorithm=bradley_terry", "validation.suites=[vlm_quickstart]"],
         "validation.suites is given, but bradley_terry samples nothing"),
        ("quickstart", ["validation.every=null", "validation.before=false", "validation.suites=[quickstart]"],
         "nothing is validated"),
        ("quickstart", ["validation.suite_prompts=3"], "suite_prompts is never read without suites"),
    ],
)  # fmt: skip
def test_what_would_never_be_read_is_refused(recipe, given, message):
    with pytest.raises(ConfigError, match=message):
        load(recipe, given)
