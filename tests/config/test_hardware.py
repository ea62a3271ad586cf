"""What recipes state about the machine that they are made for."""

import pytest

from burnish.cli import main
from burnish.config.hardware import Hardware
from burnish.config.load import hardware_of, load, recipe_names
from burnish.utils.errors import ConfigError
from burnish.utils.hub import is_hub_id

REAL = [name for name in recipe_names() if "/" in name]


def test_every_recipe_of_a_real_model_states_its_hardware():
    for name in recipe_names():
        real = is_hub_id(load(name).model.path)
        assert (hardware_of(name) is not None) == real, name


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
    assert hardware_of("flux/flow_grpo") == Hardware(1, 80.0)
    eight = Hardware(8, 80.0, ("sharding.gather=compute", "model.offload=true"))
    assert hardware_of("flux/mix_grpo") == eight
    own = tmp_path / "own.yaml"
    own.write_text("extends: flux/mix_grpo\n")
    assert hardware_of(str(own)) == eight
    own.write_text("extends: flux/mix_grpo\nhardware: {gpus: 2, memory_gb: 24}\n")
    assert hardware_of(str(own)) == Hardware(2, 24.0)


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
    assert "is made for 8 GPUs of 80 GB with runtime=ray pools.train.processes=8" in capsys.readouterr().out
    assert main(["recipes"]) == 0
    assert "1 GPU of 24 GB" in capsys.readouterr().out
