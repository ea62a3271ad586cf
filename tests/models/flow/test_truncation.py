"""Prompts that are longer than what a pipeline's text encoders read."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import burnish.models.flow.pipeline
from burnish.config import load as load_config
from burnish.models.flow.loading import check_parts
from burnish.models.flow.truncation import truncated
from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.tasks import assemble


class Tokenizer:
    """A token for each word."""

    def __init__(self, most):
        self.model_max_length = most

    def __call__(self, text):
        return SimpleNamespace(input_ids=text.split())


class Plain:
    def __init__(self, *most):
        self.tokenizers = [Tokenizer(one) for one in most]

    def __call__(self, prompt): ...


class Chosen(Plain):
    def __call__(self, prompt, max_sequence_length=6): ...


FIVE, SEVEN = "a b c d e", "a b c d e f g"


def said(pipeline, length, texts):
    return truncated(type(pipeline), pipeline.tokenizers, length, texts)


def test_a_text_that_one_encoder_reads_is_whole():
    assert said(Plain(3, 6), None, [FIVE]) == ""
    found = said(Plain(3, 6), None, [FIVE, SEVEN, f"{SEVEN} h", SEVEN])
    assert found.startswith("2 of 3 prompts have more tokens than a Plain reads")
    assert "'a b c d e f g h' has 8, of which it reads 6; shorten them" in found
    assert said(Plain(), None, [SEVEN]) == ""


def test_the_length_that_is_asked_for_counts():
    assert "reads 6; shorten them, or set rollout.max_sequence_length" in said(Chosen(100), None, [SEVEN])
    assert said(Chosen(100), 7, [SEVEN]) == ""
    assert said(Chosen(6), 7, [SEVEN])


@pytest.mark.parametrize("name", ["sd1.5", "qwen-image-edit"])
def test_it_is_said_once_before_weights_are_loaded(name, tmp_path, monkeypatch, caplog):
    write(describe(name), tmp_path / "model", 0)
    (tmp_path / "prompts.txt").write_text('a "cat"\n' + 'a "dog" ' * 900 + "\n")

    def load(*args, **more):
        raise AssertionError("weights are loaded")

    monkeypatch.setattr(burnish.models.flow.pipeline, "load_mapped", load)
    options = [f"model.path={tmp_path / 'model'}", f"data.train_files={tmp_path / 'prompts.txt'}", "model.device=cpu"]
    assembly = assemble(load_config("quickstart", options))
    check_parts(assembly.config.model, assembly.config.rollout, assembly.train_prompts)
    assert len([one for one in caplog.records if "prompts have more tokens" in one.getMessage()]) == 1
