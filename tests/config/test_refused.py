"""Every way in which a configuration is refused: the message has the option, its value and the way out."""

import re
from pathlib import Path

import pytest

from burnish import cli
from burnish.config import load
from burnish.config.disk import check_disk
from burnish.utils.errors import ConfigError

COMMAND_LINE = {
    "unknown option": (
        ["rollout.num_inference_step=8"],
        ["rollout.num_inference_step is 8", "rollout.num_inference_steps"],
    ),
    "unknown section": (["rollouts.n=3"], ["rollouts.n is 3", "rollout.n"]),
    "option of a section at the top": (["lr=1e-3"], ["lr is 0.001", "did you mean optimizer.lr"]),
    "option that no name is near": (["scoring.zzz=1"], ["scoring.zzz is 1", "processes, timeout"]),
    "option of another algorithm": (
        ["algorithm.noise_level=0.7"],
        [
            "algorithm.noise_level is 0.7",
            "is an option of",
            "flow_grpo",
            "diffusion_nft, which this run uses, never reads it",
        ],
    ),
    "section of another algorithm": (
        ["algorithm.window.size=3"],
        ["algorithm.window.size is 3", "is an option of", "flow_grpo"],
    ),
    "near to an option of an algorithm": (
        ["algorithm.bata=1"],
        ["algorithm.bata is 1", "did you mean algorithm.beta"],
    ),
    "option inside a number": (["steps.x=1"], ["steps is {x: 1}", "a whole number"]),
    "unknown option in a nested section": (["model.lora.rnk=8"], ["model.lora.rnk is 8", "model.lora.rank"]),
    "unknown option of a reward": (
        ["rewards.ocr.wieght=1"],
        ["rewards.ocr.wieght is 1", "rewards.ocr.weight"],
    ),
    "unknown reward": (
        ["rewards.orc.weight=1"],
        ["rewards.orc is not known", "did you mean ocr", "rewards.orc.name"],
    ),
    "unknown kind of reward": (["rewards.mine.name=orc"], ["rewards.mine.name is orc", "did you mean ocr"]),
    "reward without options": (["rewards.ocr=0.5"], ["rewards.ocr is 0.5", "rewards.ocr.weight=1"]),
    "removed reward is not there": (
        ["rewards.orc=null"],
        ["rewards.orc=null removes nothing", "ocr, border_darkness"],
    ),
    "algorithm of another task": (
        ["algorithm=grpo"],
        ["algorithm is grpo, which belongs to task image-text-to-text", "this run's is text-to-image", "set task="],
    ),
    "reward of another task": (
        ["rewards.exact.weight=1"],
        ["rewards.exact belongs to task image-text-to-text", "set task=", "ocr", "to use another label"],
    ),
    "unknown algorithm": (["algorithm=flow_gpro"], ["algorithm is flow_gpro", "did you mean flow_grpo"]),
    "algorithm is not a name": (["algorithm=3"], ["algorithm is 3", "diffusion_nft"]),
    "no algorithm": (["algorithm=null"], ["algorithm is required", "algorithm=NAME", "diffusion_nft"]),
    "text for a number": (["rollout.n=many"], ["rollout.n is many", "a whole number"]),
    "fraction for a whole number": (["rollout.n=2.5"], ["rollout.n is 2.5", "a whole number"]),
    "true for a number": (["rollout.n=true"], ["rollout.n is true", "a whole number"]),
    "word for a switch": (["data.shuffle=yes"], ["data.shuffle is 'yes'", "true or false"]),
    "number for text": (["output_dir=3"], ["output_dir is 3", "text", "quotes"]),
    "null for a number": (["steps=null"], ["steps is null", "a whole number"]),
    "list for a number": (["steps=[1,2]"], ["steps is [1, 2]", "a whole number"]),
    "text for a list": (["model.lora.targets=attn"], ["model.lora.targets is attn", "a list"]),
    "short list": (["optimizer.betas=[0.9]"], ["optimizer.betas is", "2 values"]),
    "short list of four": (
        ["algorithm=awm", "algorithm.old_decay=linear", "algorithm.old_linear=[0,1]"],
        ["algorithm.old_linear is [0, 1]", "a list of 4 values"],
    ),
    "long list": (["optimizer.betas=[0.9,0.9,0.9]"], ["optimizer.betas is [0.9, 0.9, 0.9]", "2 values"]),
    "number for a section": (["optimizer=3"], ["optimizer is 3", "a section"]),
    "switch for a section": (["model.lora=true"], ["model.lora is true", "a section"]),
    "values without --sweep": (["seed=0,1,2"], ["seed is 0,1,2", "a whole number", "--sweep"]),
    "too small": (["rollout.n=0"], ["rollout.n is 0", ">= 1"]),
    "not above": (["optimizer.lr=0"], ["optimizer.lr is 0", "> 0"]),
    "too large": (["ema.decay=1"], ["ema.decay is 1", "< 1"]),
    "too large in a list": (["optimizer.betas=[0.9,1.5]"], ["optimizer.betas.1 is 1.5", "< 1"]),
    "infinite": (["optimizer.lr=.inf"], ["optimizer.lr is .inf", "finite"]),
    "not a number": (["rewards.ocr.weight=.nan"], ["rewards.ocr.weight is .nan", "finite"]),
    "too small in the algorithm": (["algorithm.beta=-1"], ["algorithm.beta is -1", "> 0"]),
    "no such choice": (
        ["optimizer.schedule=cosin"],
        ["optimizer.schedule is cosin", "did you mean cosine", "constant, linear, cosine"],
    ),
    "no such runtime": (["runtime=slurm"], ["runtime is slurm", "local", "ray"]),
    "no equals sign": (["rollout.n"], ["'rollout.n'", "no '='", "option=value"]),
    "no name": (["=3"], ["'=3'", "option=value"]),
    "odd name": (["+rollout.n=3"], ["'+rollout.n=3'", "rollout.n=8"]),
    "no value": (["output_dir="], ["output_dir=", "no value", "null"]),
    "not YAML": (["model.lora.targets=[a"], ["model.lora.targets=[a", "YAML"]),
    "tag that is not read": (["seed=!!python/name:os.system"], ["seed=!!python", "not YAML"]),
    "list that holds itself": (["model.lora.targets=&a [*a]"], ["model.lora.targets=&a", "not YAML"]),
    "tag that does not fit": (["data.shuffle=!!bool maybe"], ["data.shuffle=!!bool maybe", "not YAML"]),
    "twice": (["rollout.n=2", "rollout.n=3"], ["rollout.n", "twice", "2", "3"]),
    "algorithm twice": (["algorithm=flow_grpo", "algorithm=diffusion_nft"], ["algorithm.name", "twice"]),
    "off and set": (
        ["model.lora=null", "model.lora.rank=8"],
        ["model.lora=null", "model.lora.rank=8", "contradict"],
    ),
    "required": (["model={path: null}"], ["model.path is null", "text"]),
    "algorithm at odds with itself": (
        ["algorithm.old_decay=ema"],
        ["algorithm.old_ema is null", "algorithm.old_ema"],
    ),
    "option that is refused with a reason": (
        ["algorithm=flow_grpo", "algorithm.transition=ode"],
        ["algorithm.transition is ode: a step without noise", "choose sde, cps, dance or ddim"],
    ),
    "more noise than there is": (
        ["algorithm=flow_grpo", "algorithm.transition=ddim", "algorithm.noise_level=1.2"],
        ["algorithm.noise_level is 1.2", "ddim", "1 at most", "another transition"],
    ),
    "window at odds with itself": (
        ["algorithm=flow_grpo", "algorithm.window.size=3"],
        ["algorithm.window.size is 3", "algorithm.window.size"],
    ),
    "no group": (["rollout.n=1"], ["rollout.n is 1", "diffusion_nft", ">= 2"]),
    "more noise levels than steps": (
        ["algorithm.train_timesteps=9"],
        ["algorithm.train_timesteps is 9", "rollout.num_inference_steps is 8", "fewer"],
    ),
    "gradients through another solver's steps": (
        ["algorithm=draft", "algorithm.last_steps=2", "rollout.solver=heun"],
        ["rollout.solver is heun", "algorithm.last_steps is 2", "rollout.solver=euler"],
    ),
    "solver under its old name": (
        ["algorithm=mix_grpo", "algorithm.solver=dpm2"],
        ["algorithm.solver is dpm2", "did you mean rollout.solver"],
    ),
    "window ends too late": (
        ["algorithm=flow_grpo", "algorithm.window.stop=8"],
        ["algorithm.window.stop is 8", "first 7", "rollout.num_inference_steps is 8"],
    ),
    "window does not fit": (
        ["algorithm=flow_grpo", "algorithm.window={kind: random, size: 8}"],
        ["algorithm.window: a window of 8 steps", "rollout.num_inference_steps is 8"],
    ),
    "mini-batch too large": (
        ["trainer.mini_batch_size=97"],
        ["trainer.mini_batch_size is 97", "96", "data.train_batch_size 8", "rollout.n 12", "null"],
    ),
    "rescale without guidance": (
        ["rollout.guidance_rescale=true"],
        ["rollout.guidance_rescale is true", "rollout.guidance_scale is 1", "rollout.guidance_rescale=false"],
    ),
    "merge without adapters": (
        ["model.lora=null", "rollout.merge_lora=true"],
        ["rollout.merge_lora", "model.lora is null", "model.lora.rank"],
    ),
    "timeout without processes": (
        ["scoring.processes=0", "scoring.timeout=3"],
        ["scoring.timeout", "scoring.processes is 0"],
    ),
    "unknown family": (["model.family=sd9"], ["model.family is", "sd9", "auto"]),
    "no reward": (
        ["rewards={ocr: null, border_darkness: null}"],
        ["rewards", "weight", "rewards.NAME.weight=1"],
    ),
    "watched only": (["rewards.ocr.weight=0"], ["rewards", "weight 0", "rewards.NAME.weight=1"]),
    "warm-up too long": (
        ["optimizer.warmup_steps=30"],
        ["optimizer.warmup_steps is 30", "30 optimizer steps"],
    ),
    "model is not there": (["model.path=/nowhere/model"], ["model.path is /nowhere/model", "directory"]),
    "model of a hub": (["model.path=stabilityai/sd3"], ["model.path is stabilityai/sd3", "hf download"]),
    "model does not ship": (
        ["model.path=burnish:quick/model"],
        ["model.path", "burnish:quick/model", "quickstart"],
    ),
    "model is something else": (["model.path=."], ["model.path is .", "model_index.json"]),
    "no prompts": (["data.train_files=nothing.txt"], ["data.train_files is nothing.txt", ".jsonl"]),
    "prompts do not ship": (["data.val_files=burnish:x.txt"], ["data.val_files", "burnish:x.txt"]),
    "prompts out of the package": (
        ["data.val_files=burnish:../x"],
        ["data.val_files", "burnish:../x", "leads out"],
    ),
    "folder is a file": (["output_dir=small.yaml"], ["output_dir is small.yaml", "another folder"]),
    "folder below a file": (["output_dir=small.yaml/x"], ["output_dir is small.yaml/x", "another folder"]),
    "checkpoint is not there": (["resume=nothing"], ["resume is nothing", "auto, never"]),
}

RECIPES = {
    "broken YAML": ("steps: 3\nmodel: [", ["line 2"]),
    "tab": ("model:\n\tpath: x", ["line 2"]),
    "key twice": ("steps: 3\nsteps: 4", ["line 2", "steps is given twice"]),
    "key is no word": ("1: x", ["line 1", "words"]),
    "a list": ("[1, 2]", ["must contain options"]),
    "empty": ("", ["must contain options", "null"]),
    "required": (
        "algorithm: diffusion_nft\nrewards: {ocr: {}}\nmodel: {}",
        [
            "model.path is required",
            "directory",
            "data.train_files is required",
            "prompts",
        ],
    ),
    "no algorithm": ("steps: 3", ["algorithm is required", "diffusion_nft"]),
    "unknown": ("stpes: 3", ["stpes is 3", "did you mean steps", "(in broken.yaml)"]),
    "variants of nothing": (
        "variants: {flow_gpro: {steps: 3}}",
        ["variants.flow_gpro", "did you mean flow_grpo"],
    ),
    "variant is a number": ("variants: {flow_grpo: 3}", ["variants.flow_grpo is 3"]),
    "variant of another": (
        "variants: {flow_grpo: {algorithm: diffusion_nft}}",
        ["variants.flow_grpo.algorithm"],
    ),
    "variants are a list": ("variants: [flow_grpo]", ["variants is [flow_grpo]"]),
    "label of a reward": ("rewards: {a.b: {name: ocr}}", ["rewards has 'a.b'", "letters"]),
    "algorithm is a list": (
        "algorithm: {name: [flow_grpo]}",
        ["algorithm is [flow_grpo]", "(in broken.yaml)"],
    ),
    "rewards are a list": ("rewards: [ocr]", ["rewards is [ocr]", "map names"]),
}


def refusal(recipe, overrides):
    with pytest.raises(ConfigError) as refused:
        check_disk(load(recipe, overrides))
    return str(refused.value)


@pytest.mark.parametrize("case", COMMAND_LINE)
def test_what_the_command_line_can_get_wrong(recipe, case, capsys):
    overrides, words = COMMAND_LINE[case]
    message = refusal(recipe, overrides)
    for word in words:
        assert word in message
    assert "pydantic" not in message
    assert "(in small.yaml)" not in message
    assert cli.main(["train", recipe, *overrides]) == 2
    shown = capsys.readouterr().err
    assert "burnish: error: " in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize("case", RECIPES)
def test_what_a_recipe_can_get_wrong(recipe, case):
    text, words = RECIPES[case]
    Path("broken.yaml").write_text(text)
    message = refusal("broken.yaml", [])
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("quikstart", ["recipe is quikstart", "did you mean quickstart", ".yaml"]),
        ("nothing.yaml", ["recipe nothing.yaml", "quickstart"]),
        ("seed=1", ["'seed=1'", "recipe comes first"]),
        (".", ["recipe is .", "quickstart"]),
    ],
)
def test_unknown_recipes(name, words):
    message = refusal(name, [])
    for word in words:
        assert word in message


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
