"""What recipes state about the machine that they are made for."""

from dataclasses import replace

import pytest

import burnish
from burnish.cli import main
from burnish.config import dump
from burnish.config.hardware import Hardware
from burnish.config.load import hardware_of, load, recipe_names
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.hub import is_hub_id

REAL = [name for name in recipe_names() if "/" in name]


def test_every_recipe_of_a_real_model_states_its_hardware():
    for name in recipe_names():
        real = is_hub_id(load(name).model.path)
        assert bool(hardware_of(name)) == real, name


@pytest.mark.parametrize(
    ("hardware", "options"),
    [
        (Hardware(1, 80), []),
        (Hardware(4, 24), ["runtime=ray", "pools.train.processes=4"]),
        (Hardware(1, 24, ("rollout.batch_size=4",)), ["rollout.batch_size=4"]),
        (Hardware(64, 80), ["runtime=ray", "pools.train.nodes=8", "pools.train.processes=8"]),
    ],
)
def test_the_options_for_its_gpus_are_those_of_pools(hardware, options):
    assert hardware.options == options


def test_a_recipe_takes_the_statement_of_the_one_that_it_extends(tmp_path):
    assert hardware_of("flux/flow_grpo") == (Hardware(1, 80.0),)
    eight = Hardware(8, 80.0, ("sharding.gather=compute", "model.offload=true"))
    assert hardware_of("flux/mix_grpo") == (eight,)
    own = tmp_path / "own.yaml"
    own.write_text("extends: flux/mix_grpo\n")
    assert hardware_of(str(own)) == (eight,)
    own.write_text("extends: flux/mix_grpo\nhardware: {gpus: 2, memory_gb: 24}\n")
    assert hardware_of(str(own)) == (Hardware(2, 24.0),)


@pytest.mark.parametrize(
    "stated", ["80", "{gpus: 1}", "{gpus: 0, memory_gb: 80}", "{gpus: 12, memory_gb: 80}", "{gpus: 1, memory_gb: big}",
               "{gpus: 1, memory_gb: 80, kind: A100}", "{gpus: 1, memory_gb: 80, options: [1]}"],
)  # fmt: skip
def test_a_malformed_statement_is_refused(tmp_path, stated):
    own = tmp_path / "own.yaml"
    own.write_text(f"extends: quickstart\nhardware: {stated}\n")
    for read in (hardware_of, load):
        with pytest.raises(ConfigError, match=r"hardware is .*own\.yaml.* must be like"):
            read(str(own))


def test_the_command_line_shows_it(capsys):
    assert main(["config", "wan22/flow_grpo"]) == 0
    said = capsys.readouterr().out
    assert "is made for 8 GPUs of 80 GB with runtime=ray pools.train.processes=8" in said
    assert "#   - wan22/flow_grpo is made for 8 GPUs of 80 GB, and this machine has no GPU" in said
    assert main(["recipes"]) == 0
    assert "1 GPU of 24 GB" in capsys.readouterr().out


def composed(recipe, *options):
    config = load(recipe, options)
    train = config.pools.train
    return config.runtime, train.nodes, train.processes, train.device


def test_gpus_compose_what_a_recipe_states_below_the_command_line():
    assert composed("qwen25_vl/grpo") == ("local", 1, 1, "auto")
    assert composed("qwen25_vl/grpo", "gpus=8") == ("ray", 1, 8, "cuda")
    assert composed("qwen25_vl/grpo", "gpus=8", "nodes=4") == ("ray", 4, 8, "cuda")
    assert composed("sd35/flow_grpo", "gpus=16") == ("ray", 2, 8, "cuda")
    assert load("qwen25_vl/grpo", ["gpus=8"]).sharding.gather == "compute"
    assert load("qwen25_vl/grpo", ["gpus=8", "sharding.gather=exact"]).sharding.gather == "exact"
    assert load("wan22/flow_grpo", ["gpus=1"]).model.offload
    assert composed("wan22/flow_grpo", "gpus=1")[0] == "local"
    twice = load("qwen25_vl_72b/grpo", ["gpus=128"]).pools
    assert (twice.train.nodes, twice.rollout.nodes, twice.rollout.gpus) == (12, 4, 8)


@pytest.mark.parametrize("recipe", REAL)
def test_every_recipe_composes_for_eight_gpus_and_what_it_states(recipe):
    for gpus in {max(8, hardware_of(recipe)[0].gpus), *(one.gpus for one in hardware_of(recipe))}:
        pools = load(recipe, [f"gpus={gpus}"]).pools
        held = pools.train.size + (pools.rollout.size * int(pools.rollout.gpus or 1) if pools.rollout else 0)
        assert held == gpus


def test_of_several_statements_the_nearest_is_taken(tmp_path):
    own = tmp_path / "own.yaml"
    cards = [(1, 80, 1), (8, 80, 2), (8, 141, 4)]
    stated = ", ".join(
        f"{{gpus: {gpus}, memory_gb: {memory}, options: [rollout.batch_size={size}]}}" for gpus, memory, size in cards
    )
    own.write_text(f"extends: quickstart\nhardware: [{stated}]\n")

    def size(*options):
        return load(str(own), options).rollout.batch_size

    assert [size("gpus=1"), size("gpus=4"), size("gpus=8"), size("gpus=16")] == [1, 1, 2, 2]
    assert [size("gpus=8", "memory=141GB"), size("gpus=8", "memory=96GB")] == [4, 2]


@pytest.mark.parametrize(
    "words", [["gpus=0"], ["gpus=eight"], ["nodes=2"], ["gpus=12"], ["gpus=8", "force=yes please"], ["memory=much"]]
)
def test_words_of_the_machine_have_values(words):
    with pytest.raises(UserError, match=words[-1].partition("=")[0]):
        load("qwen25_vl/grpo", words)


def test_a_machine_that_cannot_run_a_recipe_refuses_it_before_anything_is_fetched(capsys):
    assert main(["train", "qwen25_vl/grpo", "seed=3"]) == 2
    assert "burnish train qwen25_vl/grpo gpus=8 seed=3" in " ".join(capsys.readouterr().err.split())
    assert main(["train", "qwen25_vl/grpo", "gpus=8"]) == 2
    assert "no GPU; on a machine with 8 GPUs run: burnish train qwen25_vl/grpo gpus=8; or" in capsys.readouterr().err
    assert main(["train", "qwen25_vl/grpo", "gpus=16", "force=true"]) == 2
    command = "burnish train qwen25_vl/grpo gpus=16 ray.address=HOST:6379"
    assert f"start Ray on 2 machines, and on one of them run: {command}\n" in capsys.readouterr().err


def test_fewer_gpus_than_asked_for_are_too_few(monkeypatch, capsys):
    monkeypatch.setattr("burnish.commands.hardware._gpus", lambda _: 2)
    assert main(["train", "qwen25_vl/grpo", "gpus=8", "seed=3"]) == 2
    command = "burnish train qwen25_vl/grpo gpus=8 seed=3"
    said = f"gpus is 8, but this machine has 2 GPUs; on a machine with 8 GPUs run: {command}"
    assert said in capsys.readouterr().err
    assert main(["train", "qwen25_vl/grpo", "gpus=2"]) == 2
    assert "model.path" in capsys.readouterr().err  # what stops it is that the model is not here
    assert main(["train", "qwen25_vl/grpo"]) == 2
    assert "the run uses one of them (gpus=2 uses all)" in capsys.readouterr().out


def test_it_is_refused_from_python_too():
    config = replace(burnish.load("qwen25_vl/grpo", "seed=3"), steps=7)
    with pytest.raises(
        UserError, match=r"run: burnish\.load\('qwen25_vl/grpo', 'gpus=8', 'seed=3'\); or set force=true"
    ):
        burnish.train(config)
    with pytest.raises(UserError, match="gpus is 8, but this machine has no GPU"):
        burnish.train(burnish.load("qwen25_vl/grpo", gpus=8))
    with pytest.raises(UserError, match=r"model\.path"):  # what stops it is that the model is not here
        burnish.train(burnish.load("qwen25_vl/grpo", force=True))


def test_what_a_configuration_was_composed_from_is_no_option():
    config = load("qwen25_vl/grpo", ["gpus=8"])
    assert config == replace(config, origin=None)
    assert "origin" not in dump(config)
    with pytest.raises(ConfigError, match=r"origin is 3, but there is no such option"):
        load("quickstart", ["origin=3"])


def test_another_model_and_force_go_on(capsys, tmp_path):
    for more in ("model.path=" + str(tmp_path / "none"), "force=true"):
        assert main(["train", "qwen25_vl/grpo", more, f"output_dir={tmp_path}/run"]) == 2
        printed = capsys.readouterr()
        assert "is made for 8 GPUs of 80 GB" in printed.out
        assert "gpus=8" not in printed.err  # what stops it is that the model is not here
