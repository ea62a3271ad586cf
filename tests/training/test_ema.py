"""An average of the weights: how its decay grows, what it holds, and that training never notices it."""

from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import yaml

from burnish.options import EmaOptions
from burnish.training.optimizer import Ema, decay_at
from tests.conformance import cases


def network(dtype=torch.float32) -> dict[str, torch.nn.Parameter]:
    torch.manual_seed(0)
    return {name: torch.nn.Parameter(torch.randn(3, 2).to(dtype)) for name in ("a", "b")}


def move(parameters) -> None:
    with torch.no_grad():
        for value in parameters.values():
            value.add_(torch.randn_like(value))


@pytest.mark.parametrize("case", cases("ema", "schedule/flow_grpo"), ids=lambda case: case.id)
def test_the_decay_is_flow_grpos(case):
    case.close([decay_at(step, case.inputs["decay"]) for step in case.inputs["steps"]], case.expected["decay"])


@pytest.mark.parametrize("case", cases("ema", "schedule/flow_factory_ema_"), ids=lambda case: case.id)
def test_the_decay_is_flow_factorys(case):
    given = case.inputs
    options = {"initial": given.get("initial_decay", 0.0), "kind": case.id.removeprefix("schedule/flow_factory_ema_")}
    options |= {
        ours: given[name] for ours, name in (("warm_up", "warmup_steps"), ("steps", "total_steps")) if name in given
    }
    case.close([decay_at(step, given["decay"], **options) for step in given["steps"]], case.expected["decay"])


AVERAGES = yaml.safe_load(Path(__file__).with_name("numbers.yaml").read_text())["averages"]


@pytest.mark.parametrize(("given", "decays"), AVERAGES)
def test_the_average_is_the_recurrence(given, decays):
    parameters = network()
    ema = Ema(parameters, **asdict(EmaOptions(**given)))
    expected = {name: value.detach().double() for name, value in parameters.items()}
    for decay in decays:
        move(parameters)
        for name, value in parameters.items():
            expected[name] = decay * expected[name] + (1 - decay) * value.detach().double()
        ema.update()
    for name, value in ema.average.items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-6, atol=1e-6)


def test_the_average_of_half_precision_weights_is_kept_in_float32():
    parameters = {"a": torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))}
    ema = Ema(parameters, 0.999)
    ema.steps = 10**6  # the decay has grown up
    with torch.no_grad():
        parameters["a"].fill_(2.0)
    for _ in range(5):
        ema.update()
    assert ema.average["a"].dtype == torch.float32
    # each step is far below the resolution of bfloat16 at 1
    torch.testing.assert_close(ema.average["a"], torch.full((4,), 2 - 0.999**5), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("raises", [False, True])
def test_the_trained_weights_come_back_bit_for_bit(dtype, raises):
    parameters = network(dtype)
    ema = Ema(parameters, 0.9)
    move(parameters)
    ema.update()
    trained = {name: value.detach().clone() for name, value in parameters.items()}
    average = {name: value.clone() for name, value in ema.average.items()}
    with pytest.raises(ZeroDivisionError) if raises else torch.no_grad():
        with ema.applied():
            for name, value in parameters.items():
                assert torch.equal(value, average[name].to(dtype))
                assert not torch.equal(value, trained[name])
            if raises:
                raise ZeroDivisionError
    for name, value in parameters.items():
        assert torch.equal(value, trained[name])
        assert torch.equal(ema.average[name], average[name])
        assert value.requires_grad
