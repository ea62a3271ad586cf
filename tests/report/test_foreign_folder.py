"""Reports about folders of strangers: they show what is in the folder, and nothing of the machine that writes them."""

from __future__ import annotations

import json
import shutil
import zlib

import numpy as np
import pytest
from PIL import Image

from burnish.config.run_folder import STEP, RunFolder
from burnish.config.yaml_text import parse
from burnish.report import write_report
from burnish.report.samples import read_samples
from burnish.utils.errors import UserError
from tests.support.reports import Story, change_samples, page_of, run_folder

EVIL = "\"'></title></style></script><script>alert(1)</script><img src=http://example.org/x onerror=alert(1)>"
SECRET = 77  # pixels of a picture that is not the run's


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A run of a model that sees, one sample a validation."""
    folder = run_folder(tmp_path_factory.mktemp("written") / "run", Story(updates=10, guided=False))
    for update in folder.validations():
        file = folder.validation(update) / "samples.jsonl"
        first = json.loads(file.read_text().splitlines()[0])
        file.write_text(json.dumps(first | {"response": "no", "answer": "yes", "images": ["000-00.png"]}) + "\n")
        for picture in (folder.validation(update) / "pictures").iterdir():
            if picture.name != "000-00.png":
                picture.unlink()
    return folder


@pytest.fixture
def folder(written, tmp_path):
    """A copy of it."""
    folder = RunFolder(shutil.copytree(written.path, tmp_path / "run"))
    Image.fromarray(np.full((8, 8, 3), SECRET, np.uint8)).save(tmp_path / "secret.png")
    return folder


def pictures(folder) -> int:
    return len(page_of(folder).addresses)


@pytest.mark.parametrize("name", ["../../../../secret.png", "{outside}/secret.png", "../../../../secret.png\0", "."])
def test_pictures_from_outside_of_the_folder_are_not_embedded(folder, name):
    assert pictures(folder) > 0
    change_samples(folder, images=[name.format(outside=folder.path.parent)])
    assert pictures(folder) == 0


@pytest.mark.parametrize("linked", ["file", "pictures", "validation"])
def test_links_out_of_the_folder_bring_nothing_in(folder, tmp_path, linked):
    place = folder.validation(0).parent
    elsewhere = tmp_path / "elsewhere"
    if linked == "file":
        for update in folder.validations():
            file = folder.validation(update) / "pictures" / "000-00.png"
            file.unlink()
            file.symlink_to(tmp_path / "secret.png")
    else:
        source = place if linked == "validation" else folder.validation(0) / "pictures"
        shutil.copytree(source, elsewhere)
        for update in folder.validations() if linked == "pictures" else [0]:
            target = place if linked == "validation" else folder.validation(update) / "pictures"
            shutil.rmtree(target)
            target.symlink_to(elsewhere)
    assert pictures(folder) == 0


def test_a_picture_that_would_fill_the_memory_is_not_opened(folder):
    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    size = (60_000).to_bytes(4, "big")
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size + size + bytes([8, 2, 0, 0, 0])) + chunk(b"IDAT", b"x")
    for update in folder.validations():
        (folder.validation(update) / "pictures" / "000-00.png").write_bytes(bomb)
    assert pictures(folder) == 0


@pytest.mark.parametrize("place", ["prompt", "note", "response", "answer"])
def test_what_a_sample_says_is_text(folder, place):
    change_samples(folder, **{place: EVIL})
    page = page_of(folder)
    assert page.tags.count("script") == 2
    assert folder.report.read_text().count("<script") == 2
    assert all(address.startswith("data:image/") for address in page.addresses)
    assert EVIL in page.text


def test_names_of_metrics_and_options_are_text(folder):
    rows = [json.loads(line) | {f"actor/{EVIL}": update, f"val-aux/x/{EVIL}/mean@1": 0.5} for update, line in
            enumerate(folder.metrics.read_text().splitlines())]  # fmt: skip
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = parse(folder.config.read_text())
    folder.config.write_text(json.dumps(config | {"rewards": {EVIL: {"weight": 1.0}}}))
    page = page_of(folder)
    assert page.tags.count("script") == 2
    assert folder.report.read_text().count("<script") == 2
    assert all(address.startswith("data:image/") for address in page.addresses)
    assert page.text.count("alert(1)") > 2


@pytest.mark.parametrize(
    "changes",
    [
        {"reward": "1"}, {"reward": [1]}, {"reward": True}, {"components": []}, {"components": {"a": "1"}},
        {"prompt": None}, {"note": 3}, {"sample": None}, {"response": 4}, {"images": 5}, {"images": [6]},
        {"index": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_a_sample_of_other_types_is_none(folder, changes):
    change_samples(folder, **changes)
    assert read_samples(folder.validation(0)) == {}
    write_report(folder)


@pytest.mark.parametrize(
    "line",
    ["[" * 100_000, "[1]", "7", '{"a": 1}', f'{{"{STEP}": "1"}}', f'{{"{STEP}": 99, "val-core/x/reward/mean@1": "1"}}',
     f'{{"{STEP}": 99, "a": {{}}}}', f'{{"{STEP}": true}}'],
    ids=lambda line: line[:20],
)  # fmt: skip
def test_a_line_that_is_no_metrics_is_left_out(folder, line):
    before = len(folder.read_metrics())
    with folder.metrics.open("a") as file:
        file.write(line + "\n")
    assert len(folder.read_metrics()) == before
    write_report(folder)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "7", "model: 3", "a: &a [*a]", "[" * 5000, "{model: {path: [1]}}", "\0", "x: " + "y" * 2_000_000],
    ids=range(9),
)  # fmt: skip
def test_a_configuration_that_is_none_is_refused(folder, text):
    folder.config.write_text(text)
    with pytest.raises(UserError, match=r"config\.yaml is not the configuration of a run"):
        write_report(folder)
