"""Processes that read ahead (data.workers): the same numbers, broken records by their names, and gone with the run."""

import json
import os

import pytest
from PIL import Image, ImageFile

from tests.support.forked import forked
from tests.support.optional import seldom
from tests.support.processes import alive
from tests.support.tiny_run import TinyRun

ODD = (28, 20)  # pixels of an image that can't be read


def records(files):
    Image.new("RGB", ODD).save(files / "odd.png")
    lines = [
        {"prompt": f"<image>No. {i}?", "response": "yes", "images": ["odd.png" if i == 2 else "0.png"]}
        for i in range(4)
    ]
    (files / "odd.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [f"data.train_files={files}/odd.jsonl", "data.train_batch_size=4", "validation.before=false"]


@pytest.fixture
def trained(files, monkeypatch):
    """Train with readers that are forks of this process; ``decode`` is called in them before an image is."""

    def train(workers, *options, decode, model="qwen2_5_vl", status=0):
        own, here = ImageFile.ImageFile.load, os.getpid()

        def load(image):
            if os.getpid() != here:
                decode(image)
            return own(image)

        with monkeypatch.context() as patched, forked(lambda _, given: given.get("CUDA_VISIBLE_DEVICES") == ""):
            patched.setattr(ImageFile.ImageFile, "load", load)
            run = TinyRun(files, "language", model, "algorithm=grpo", f"data.workers={workers}", "steps=2", *options)
            return run, run.train(status=status)

    return train


@pytest.mark.parametrize(("model", "options"), [
    ("qwen2_5_vl", []), ("qwen2_5_vl", ["algorithm=sft", "trainer.mini_batch_size=1"]), *seldom(("internvl", [])),
])  # fmt: skip
def test_a_run_learns_the_same_with_readers(model, options, trained, files):
    log, found = files / f"readers-{model}", []

    def noted(_):
        with log.open("a") as lines:
            lines.write(f"{os.getpid()}\n")

    for workers in (2, 0):  # what was decoded once stays in memory, which forks inherit
        log.write_text("")
        found.append(trained(workers, *records(files), *options, decode=noted, model=model)[0].metrics)
        readers = set(map(int, log.read_text().split()))
        assert bool(readers) == bool(workers)
        assert not any(map(alive, readers))
    assert found[0] == found[1]


@pytest.mark.parametrize("how", ["broken", "dies"])
def test_a_record_that_can_not_be_read_is_named(how, trained, files):
    def fails(image):
        if image.size == ODD and how == "dies":
            os._exit(7)
        if image.size == ODD:
            raise OSError("it is cut off")

    _, said = trained(2, *records(files), decode=fails, status=2)
    assert "odd.jsonl:3" in said.message
    assert how == "broken" or "exit status 7" in said.message
