"""What a model can not do is refused with the option, before its weights are loaded."""

from pathlib import Path

import pytest
import yaml

from tests.support.model_runs import refused

TABLE = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text())


@pytest.mark.parametrize(("model", "option", "names"), TABLE["adapters"])
def test_layers_that_can_not_be_adapted_are_refused(model, option, names, files):
    refused(files, model, f"model.lora={option}", names=names)


@pytest.mark.parametrize(("model", "options", "names"), TABLE["options"].values(), ids=TABLE["options"])
def test_what_a_model_does_not_have_is_refused(model, options, names, files):
    refused(files, model, *options, names=names)
