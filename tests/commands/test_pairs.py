"""`burnish pairs`: what of a run's kept samples becomes a record, what does not, and that training reads it."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from tests.support.optional import seldom
from tests.support.reports import lines_of, write_lines
from tests.support.tiny_run import burnish


def kept(run, name, records, place="samples", **about):
    folder = run / place / name
    folder.mkdir(parents=True)
    lines = []
    for number, record in enumerate(records):
        if "response" not in record:
            record = {"file_name": f"{number:03d}.png"} | record
            shade = record.pop("shade", number * 20)
            Image.fromarray(np.full((16, 32, 3), shade, np.uint8)).save(folder / f"{number:03d}.png")
        whole = {"prompt": "the number 472", "update": 1, "sample": number, "components": {"ocr": record["reward"]}}
        lines.append(whole | about | record)
    write_lines(folder / "records.jsonl", lines)


def made(run, output="out", *options, form="pairs"):
    said = burnish("pairs", run, "-o", run / output, "--form", form, *options).out
    return lines_of(run / output / f"{form}.jsonl"), re.sub(r"\s+", " ", said)


def rewards(*values):
    return [{"reward": value} for value in values]


def said(text, reward, **more):
    return {"response": text, "finished": True, "turns": 1, "reward": reward} | more


def test_the_best_is_paired_with_the_worst_and_the_second_with_the_second(tmp_path):
    kept(tmp_path, "a", rewards(0.2, 0.9, 0.5, 0.7, 0.1))
    found, _ = made(tmp_path, "out", "--per-prompt", 9)
    assert [(one["chosen_reward"], one["rejected_reward"]) for one in found] == [(0.9, 0.1), (0.7, 0.2)]
    assert found[0]["margin"] == pytest.approx(0.8)
    assert found[0]["chosen"] == "media/a-001.png"
    assert len(made(tmp_path, "one")[0]) == 1
    assert len(made(tmp_path, "wide", "--margin", 0.6, "--per-prompt", 9)[0]) == 1
    assert "pairs.jsonl" in burnish("pairs", tmp_path, "-o", tmp_path / "out", status=2).message


def test_what_prefers_nothing_is_left_out_and_counted(tmp_path):
    kept(tmp_path, "equal", rewards(0.5, 0.5))
    kept(tmp_path, "missing", rewards(None, 0.5, None))
    kept(tmp_path, "same picture", [{"reward": 1.0, "shade": 7}, {"reward": 0.0, "shade": 7}])
    none = burnish("pairs", tmp_path, "-o", tmp_path / "none", status=2).message
    assert "3 prompts" in none
    assert "(2)" in none
    kept(tmp_path, "good", rewards(1.0, 0.0))
    found, told = made(tmp_path)
    assert len(found) == 1
    assert "equal rewards (3)" in told


def test_samples_to_imitate_are_the_best_and_those_that_are_scored_are_all(tmp_path):
    kept(
        tmp_path, "a", [{"reward": 0.2, "shade": 1}, {"reward": 0.9, "shade": 2, "components": {"ocr": 0.1}}], label="x"
    )
    kept(tmp_path, "b", [said("x", 1.0), said("x", 0.5), said("cut", 0.9, finished=False), said("two", 0.8, turns=2)])
    kept(tmp_path, "c", [{"reward": 0.9, "file_name": "000.wav"}, {"reward": 0.3, "shade": 5}])
    left = ("cut off, whose end would be learned (1)", "several turns (1)", "from files (1)")
    found, told = made(tmp_path, "sft", "--at-least", 0.3, "--per-prompt", 2, form="sft")
    assert [(one["reward"], one.get("image", one.get("response"))) for one in found] == [
        (0.9, "media/a-001.png"), (1.0, "x"), (0.3, "media/c-001.png"),
    ]  # fmt: skip
    assert (found[0]["prompt"], found[0]["update"], found[0]["label"]) == ("the number 472", 1, "x")
    for words in (*left, "score below 0.3 (1)", "came again (1)", "3 samples to imitate of 3 prompts"):
        assert words in told
    assert [one["reward"] for one in made(tmp_path, "one", form="sft")[0]] == [0.9, 1.0, 0.3]
    found, told = made(tmp_path, "scores", "--by", "ocr", form="scores")
    assert [one["score"] for one in found] == [0.2, 0.1, 1.0, 0.3]
    for words in (["--by", "clip"], ["--margin", 0.1, "--form", "sft"], ["--at-least", 0.1]):
        assert words[0] in burnish("pairs", tmp_path, "-o", tmp_path / "no", *words, status=2).message


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
    assert [one["chosen"] for one in made(tmp_path)[0]] == ["media/good-000.png"]
    assert not list((tmp_path / "out").rglob("*secret*"))


SMALL = ["steps=1", "validation.before=false", "checkpoint.every=1"]
SAMPLED = [*SMALL, "scoring.processes=0", "validation.every=1", "validation.max_prompts=3", "validation.n=1",
           "data.train_batch_size=2",
           "rollout={n: 6, save: {every: 1, prompts: 2}}", "validation.save.prompts=2"]  # fmt: skip
LEARNED = [*SMALL, "validation.every=null", "data.train_batch_size=1"]
CHAINS = yaml.safe_load(Path(__file__).with_name("chains.yaml").read_text())


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    """Runs of one update that kept samples, by recipe, each made once."""
    made_before: dict[str, Path] = {}

    def of(recipe, options):
        if recipe not in made_before:
            made_before[recipe] = tmp_path_factory.mktemp(recipe) / "run"
            burnish("train", recipe, *SAMPLED, *options, f"output_dir={made_before[recipe]}")
        return made_before[recipe]

    return of


@pytest.mark.parametrize("chain", [*seldom("pictures to imitate"), *list(CHAINS)[1:]])
def test_what_a_run_kept_is_learned_from(sampled, chain, tmp_path):
    recipe, own, form, options = CHAINS[chain]
    run = sampled(recipe, own)
    made(run, tmp_path, "--per-prompt", 3, form=form)
    files = [f"data.train_files={tmp_path / form}.jsonl"]
    files += [f"data.val_files={tmp_path / form}.jsonl"] if form != "pairs" else []
    burnish("train", recipe, *LEARNED, *own, *options, *files, f"output_dir={tmp_path}/run")
    assert lines_of(tmp_path / "run" / "metrics.jsonl")[-1]["actor/grad_norm"] > 0
