"""The page about a run: samples are seen first, anyone's folder can be shown, and it asks nothing of a network."""

import base64
import io
import json
import re
import shutil
import wave
from functools import partial

import numpy as np
import pytest
from PIL import Image

from burnish.report.media import embedded, read_medium
from burnish.types.samples import Clip
from burnish.utils.video import encode_sound
from tests.support import reports
from tests.support.clips import moving_square
from tests.support.drawing import noise, promised

SHORT = reports.Story(updates=10, steps=10, guided=False)
EVIL = "\"'></title></style></script><script>alert(1)</script><img src=http://example.org/x onerror=alert(1)>"


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = reports.run_folder(tmp_path_factory.mktemp("whole") / "run")
    return folder, reports.report(folder)


def test_the_page_asks_nothing_of_a_network(told):
    page = told[1]
    assert page.page.addresses == []
    assert page.addresses
    assert all(address.startswith("data:image/") for address in page.addresses)
    assert not {"link", "iframe", "object", "form"} & set(page.page.tags)
    assert page.page.tags.count("script") == 2, "the data of the page, and what shows it"
    assert "default-src 'none'" in page.html, "nothing else is loaded or run, by the page's own policy"
    assert "url(" not in page.html
    assert "@import" not in page.html


def test_samples_before_and_after_are_in_the_file(told):
    page = told[1]
    assert sum(address.startswith("data:image/png") for address in page.addresses) > 8
    pairs = page.run["glimpse"]
    assert [one["prompt"] for one in pairs] == [f"the number {100 + (i * 389) % 900}" for i in range(4)]
    for index, pair in enumerate(pairs):
        assert [side["title"] for side in pair["sides"]] == ["before training", "after 30 updates"]
        files = [f"validation/0000{update}/pictures/00{index}-00.png" for update in ("00", "30")]
        assert [side["file"] for side in pair["sides"]] == files
        assert set(files) <= set(page.data["media"])
    walks = {index: [one["update"] for one in walk["updates"]] for index, walk in page.data["walks"].items()}
    assert walks == {str(i): [0, 10, 20, 30] for i in range(16)}


@pytest.fixture
def single(tmp_path):
    """A run with one prompt and one sample."""
    folder = reports.run_folder(tmp_path / "run", SHORT)
    reports.one_sample(folder)
    return folder


SHOWN = {  # what samples are: what the page has of them, how its address begins, and its size in pixels
    "clips with sound": (moving_square(4, sound=True), "video", "data:video/mp4;base64,", None),
    "large clips": (
        Clip(frames=np.stack([noise(i, 640, 360) for i in range(6)]), fps=4), "video", "data:video/mp4;base64,",
        [256, 144],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("sample", "kind", "address", "size"), SHOWN.values(), ids=list(SHOWN))
def test_clips_and_sounds_play_in_a_page_that_stays_small(single, sample, kind, address, size):
    reports.draw_instead(single, lambda update, number: sample)
    page = reports.report(single)
    made = [one for one in page.data["media"].values() if kind in one]
    assert len(made) == 2
    assert all(one[kind].startswith(address) and len(one[kind]) < 500_000 for one in made)
    assert size is None or made[0]["size"] == size
    assert page.run["glimpse"][0]["sides"][0]["file"].endswith((".mp4", ".wav"))


def test_media_are_made_small_and_what_is_beyond_the_budget_is_left_out(tmp_path, monkeypatch):
    for name, sound, rate in (
        ("long", np.float32([[0.5] * 96000, [-0.25] * 96000]), 48000), ("short", np.ones((1, 80), np.float32), 8000),
        ("none", np.zeros((1, 0), np.float32), 8000), ("moving", np.zeros((1, 80), np.float32), 8000),
    ):  # fmt: skip
        (tmp_path / f"{name}.wav").write_bytes(encode_sound(sound, rate))
    with wave.open(str(tmp_path / "bytes.wav"), "wb") as file:
        file.setparams((1, 1, 8000, 0, "NONE", ""))
        file.writeframes(b"\x80" * 80)
    for name, size in (("tall", (300, 600)), ("small", (20, 10)), ("large", (600, 300))):
        Image.new("RGB", size).save(tmp_path / f"{name}.png")
    first, *others = (Image.fromarray(noise(i, 16, 8)) for i in range(3))
    for name in ("moving", "silent"):
        first.save(tmp_path / f"{name}.webp", save_all=True, append_images=others, duration=250, lossless=True)
    medium = read_medium(tmp_path / "moving.webp", 2)
    assert (medium.rate, [frame.tobytes() for frame in medium.frames]) == (4, [first.tobytes(), others[0].tobytes()])
    names = [file.name for file in sorted(tmp_path.iterdir())]
    found = embedded(tmp_path, [*names, "../secret.png", "absent.png"])
    assert set(names) - found.keys() == {"bytes.wav", "none.wav"}
    sizes = {"tall.png": (128, 256), "small.png": (20, 10), "large.png": (256, 128), "silent.webp": (16, 8)}
    assert {name: found[name]["size"] for name in sizes} == sizes
    assert ["sound" in found[f"{name}.webp"] for name in ("moving", "silent")] == [True, False]

    def content(name: str, kind: str) -> bytes:
        return base64.b64decode(found[name][kind].partition(",")[2])

    assert Image.open(io.BytesIO(content("tall.png", "image"))).size == (128, 256)
    with wave.open(io.BytesIO(content("long.wav", "sound"))) as file:
        assert file.getparams()[:4] == (1, 2, 16000, 32000)
        assert set(np.frombuffer(file.readframes(32000), "<i2").tolist()) == {4096}
    for name, kind in (("short.wav", "sound"), ("small.png", "image"), ("moving.webp", "image")):
        assert content(name, kind) == (tmp_path / name).read_bytes()
    monkeypatch.setattr("burnish.report.media.BUDGET", len(found["silent.webp"]["image"]) * 3 // 2)
    assert list(embedded(tmp_path, ["silent.webp", "silent.webp", "long.wav", "moving.webp", "small.png"])) == [
        "silent.webp", "small.png",
    ]  # fmt: skip


# folders that a crash left, or that a stranger gives


def nothing_but(folder, *kept):
    for part in folder.path.iterdir():
        if part.name not in kept:
            shutil.rmtree(part) if part.is_dir() else part.unlink()


def cut(folder, *patterns, most=-40):
    for file in [file for pattern in patterns for file in folder.path.glob(pattern)]:
        file.write_bytes(file.read_bytes()[:most])


def without_first_validation(folder):
    shutil.rmtree(folder.validation(0))
    reports.write_lines(folder.metrics, reports.lines_of(folder.metrics)[11:])


DAMAGE = {
    "options alone": lambda folder: nothing_but(folder, "config.yaml"),
    "metrics alone": lambda folder: nothing_but(folder, "metrics.jsonl"),
    "metrics torn": lambda folder: cut(folder, "metrics.jsonl"),
    "all torn": lambda folder: cut(folder, "*/metrics.json", "validation/*/samples.jsonl", "*/*/pictures/*", most=-30),
    "no first validation": without_first_validation,
    "lines that are no metrics": lambda folder: folder.metrics.write_text(folder.metrics.read_text() + "".join(
        line + "\n" for line in ("[" * 100_000, "[1]", "7", '{"a": 1}', '{"training/global_step": "1"}', "nonsense",
        '{"training/global_step": 99, "val-core/x/reward/mean@1": "1"}', '{"training/global_step": true}'))),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
def test_a_page_can_be_written_at_any_time(tmp_path, damage, caplog):
    folder = reports.run_folder(tmp_path / "run", SHORT)
    damage(folder)
    page = reports.report(folder)
    assert "burnish train" in page.text
    assert page.run["updates"] in (0, 9, 10)
    assert damage is not DAMAGE["metrics torn"] or "line 11: truncated" in caplog.text


@pytest.fixture
def foreign(single, tmp_path):
    """Of a model that sees, beside an image that is nobody's business."""
    reports.change_samples(single, response="no", answer="yes", images=["000-00.png"])
    Image.fromarray(np.full((8, 8, 3), 77, np.uint8)).save(tmp_path / "secret.png")
    assert reports.report(single).addresses
    return single


def linked(folder, outside, place):
    """A file or folder, of which a copy elsewhere is linked to in its place."""
    for update in folder.validations() if place != "validation" else [0]:
        images = folder.validation(update) / "pictures"
        places = {"file": images / "000-00.png", "pictures": images, "validation": folder.path / "validation"}
        target = places[place]
        target.rename(outside / f"moved{update}")
        target.symlink_to(outside / f"moved{update}")


def bombs(folder, outside):
    for update in folder.validations():
        (folder.validation(update) / "pictures" / "000-00.png").write_bytes(promised(60_000, 60_000))


def asks(folder, outside, name):
    reports.change_samples(folder, images=[name.format(outside=outside)])


LEADING_OUT = {
    **{f"link to {place}": partial(linked, place=place) for place in ("file", "pictures", "validation")},
    **{f"picture {name!r}": partial(asks, name=name) for name in ("../../../../secret.png", "{outside}/secret.png")},
    "picture that would fill the memory": bombs,
}  # fmt: skip


@pytest.mark.parametrize("change", LEADING_OUT.values(), ids=list(LEADING_OUT))
def test_nothing_from_outside_of_the_folder_is_shown(foreign, tmp_path, change):
    change(foreign, tmp_path)
    assert reports.report(foreign).addresses == []


def test_what_others_wrote_is_text(foreign):
    reports.change_samples(foreign, prompt=EVIL, note=EVIL, response=EVIL, answer=EVIL)
    rows = reports.lines_of(foreign.metrics)
    reports.write_lines(foreign.metrics, [row | {f"actor/{EVIL}": 1.0 * i, f"val-aux/x/{EVIL}/mean@1": 0.5}
                                  for i, row in enumerate(rows)])  # fmt: skip
    config = foreign.config.read_text()
    foreign.config.write_text(
        re.sub(r"\nrewards:\n(  .*\n)+", f"\nrewards: {json.dumps({EVIL: {'weight': 1.0}})}\n", config)
    )
    page = reports.report(foreign.path.rename(foreign.path.parent / "<b>run & co"))
    assert page.page.tags.count("script") == 2
    assert page.html.count("<script") == 2
    assert all(address.startswith("data:image/") for address in page.addresses)
    assert page.text.count(EVIL) > 4
    assert "<script" not in page.markdown
    assert page.text.startswith("# <b>run & co")


@pytest.mark.parametrize("changes", [
    {"reward": "1"}, {"reward": [1]}, {"components": {"a": "1"}}, {"prompt": None}, {"sample": None}, {"images": [6]},
], ids=str)  # fmt: skip
def test_a_sample_of_other_types_is_none(single, changes):
    reports.change_samples(single, **changes)
    page = reports.report(single)
    assert page.run["glimpse"] == []
    assert page.run["row"]["thumbnail"] is None
