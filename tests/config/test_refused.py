"""Configurations that are refused, beside those of tests/refusals, and such as are not."""

import re
from pathlib import Path

import pytest

from burnish import cli
from burnish.config import load
from burnish.config.disk import check_disk
from burnish.utils.errors import ConfigError

BORDER = "rewards.border_darkness.weight=0.5"
NEVER = ["validation.every=null", "validation.before=false"]
CHOSEN = ["data.sampler=mine.py:choose"]


def refusal(recipe, overrides):
    with pytest.raises(ConfigError) as refused:
        check_disk(load(recipe, overrides))
    return str(refused.value)


def test_binary_recipes(recipe):
    Path("broken.yaml").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in refusal("broken.yaml", [])


def test_never_refuses_a_folder_that_has_a_run(recipe, tmp_path):
    check_disk(load(recipe, ["resume=never"]))
    (tmp_path / "run").mkdir()
    check_disk(load(recipe, ["resume=never"]))
    (tmp_path / "run" / "metrics.jsonl").touch()
    assert "resume is never" in refusal(recipe, ["resume=never"])
    assert str(tmp_path / "run") in refusal(recipe, ["resume=never"])


def test_an_existing_checkpoint_is_accepted(recipe, tmp_path):
    check_disk(load(recipe, [f"resume={tmp_path}"]))


def test_a_model_of_a_family_that_is_not_supported(recipe, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model_index.json").write_text('{"_class_name": "OtherPipeline"}')
    message = refusal(recipe, ["model.path=other"])
    assert "OtherPipeline" in message
    assert "install a version of diffusers that has it" in message


def test_a_family_that_calls_another_network_is_refused_before_it_is_loaded(recipe, tmp_path):
    (tmp_path / "other" / "transformer").mkdir(parents=True)
    index = '{"_class_name": "FluxPipeline", "transformer": ["diffusers", "FluxTransformer2DModel"]}'
    (tmp_path / "other" / "model_index.json").write_text(index)
    message = refusal(recipe, ["model.path=other", "model.family=sd3"])
    assert "model.family is sd3, which calls a SD3Transformer2DModel" in message
    assert "a FluxPipeline with FluxTransformer2DModel; leave model.family out" in message
    check_disk(load(recipe, ["model.path=other", "model.family=flux"]))


def test_half_precision_and_null_are_fine(recipe):
    overrides = [
        "model.dtype=bfloat16",
        "data.val_files=null",
        "validation.max_prompts=3",
        "optimizer.max_grad_norm=null",
    ]
    check_disk(load(recipe, overrides))


def test_the_shipped_names_are_those_of_files_in_the_package(recipe):
    overrides = ["model.path=burnish:quickstart/model", "data.train_files=burnish:quickstart/train.jsonl"]
    check_disk(load(recipe, overrides))


@pytest.mark.parametrize(
    ("option", "here"),
    [("data.val_max_samples=3", "validation.max_prompts"), ("trainer.total_epochs=2", "data.epochs"),
     ("data.filter_overlong_prompts=true", "data.overlong=filter"), ("trainer.num_train_epochs=2", "data.epochs")],
)  # fmt: skip
def test_options_of_other_tools_are_translated(option, here):
    with pytest.raises(ConfigError, match=f"here it is {re.escape(here)}"):
        load("vlm_quickstart", [option])


@pytest.mark.parametrize(
    ("path", "said"),
    [("absent.py:score", "absent.py fails to import: FileNotFoundError"), ("json:laods", "did you mean loads?")],
)
@pytest.mark.parametrize("command", ["train", "plan"])
def test_code_that_can_not_be_imported_is_refused_before_pytorch(command, path, said, monkeypatch, capsys):
    monkeypatch.setattr(cli, "loading_pytorch", lambda: pytest.fail("PyTorch is loaded first"))
    assert cli.main([command, "quickstart", f"rewards.mine={{name: function, path: '{path}'}}"]) == 2
    error = capsys.readouterr().err
    assert f"path of rewards.mine is '{path}', but" in error
    assert said in error


@pytest.mark.parametrize(
    "overrides",
    [
        ["rewards.ocr.gate={by: border_darkness, least: 0.1}", "rewards.ocr.cap=0.9"],
        ["rewards.ocr.weight_by={default: 0.5}", "mixing.normalise={}"],
        ["mixing.rule=product", BORDER, "rewards.ocr.schedule={points: [[1, 0.0], [9, 1.0]], between: hold}"],
        ["rewards.ocr.weight=0", "rewards.ocr.weight_by={default: 1.0}"],
        ["algorithm=distill"],
        ["algorithm=draft"],
        ["rollout.candidates={n: 24, num_inference_steps: 4}", "rollout.filter_groups.max_num_gen_batches=3"],
        ["algorithm.advantage_aggregation=gdpo"],
        ["algorithm.advantage_aggregation=each", "rewards.border_darkness.weight=-0.5"],
    ],
)
def test_what_is_accepted(overrides):
    load("quickstart", overrides)


def test_an_expression_of_the_users_needs_a_process_that_can_be_ended():
    own = ["rewards.format={form: pattern, pattern: '(a|a)*b'}"]
    load("vlm_quickstart", own)
    with pytest.raises(ConfigError, match=r"rewards\.format\.pattern is matched .* leave scoring\.processes out"):
        load("vlm_quickstart", [*own, "scoring.processes=0"])


@pytest.mark.parametrize(("recipe", "options"), [
    ("vlm_quickstart", ["validation.every=null", "validation.n=2"]),  # before training
    ("quickstart", [*NEVER, "validation.n=2"]),  # the untrained model, with guidance
    ("vlm_quickstart", ["validation.temperature=0", "validation.n=1"]),
    ("vlm_quickstart", ["algorithm=bradley_terry", "validation.max_prompts=4"]),
    ("quickstart", ["scoring.merge=true", "rewards.clip.weight=0.1"]),
    ("quickstart", [*CHOSEN, "data.shuffle=false", "data.train_max_samples=4"]),  # the first ones
    ("quickstart", ["trainer.shuffle=false", "trainer.mini_batch_size=48"]),
    ("quickstart", ["alarms.limits={velocity: 2, kl: 1}", "alarms.off=[narrowing, ocr]"]),
])  # fmt: skip
def test_what_is_read_is_accepted(recipe, options):
    load(recipe, options)
