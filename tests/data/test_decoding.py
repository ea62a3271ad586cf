"""Pictures and videos are decoded before a run: what is broken is named by its record, and what is whole is cheap."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from burnish.config import load
from burnish.data.decoding import check_media
from burnish.tasks import assemble
from burnish.tasks.language.engine import Encoder, prompt_lengths
from burnish.training.ranks import SINGLE_RANK
from burnish.types import headers
from burnish.types.media import Fit, Media
from burnish.types.prompt import Prompt
from burnish.utils.errors import ConfigError, UserError

NOISE = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)


def encoded(kind: str, picture: np.ndarray = NOISE) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, kind)
    return buffer.getvalue()


def fine(width: int, height: int) -> str:
    return ""


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF"])
def test_a_truncated_picture_is_found_and_a_whole_one_passes(kind):
    whole = encoded(kind)
    check_media([("a:1", Media.encoded(whole))], fine)
    with pytest.raises(UserError, match=r"a:2: has a picture in bytes that can't be decoded: "):
        check_media([("a:1", Media.encoded(whole)), ("a:2", Media.encoded(whole[: len(whole) * 2 // 3]))], fine)


def test_equal_pictures_are_decoded_once_and_all_their_records_named(monkeypatch):
    looked = []
    stated = Media.stated
    monkeypatch.setattr(Media, "stated", lambda self: looked.append(self) or stated(self))
    broken = Media.encoded(b"no picture")
    with pytest.raises(UserError) as refused:
        check_media([(f"a:{i}", broken) for i in range(12)], fine)
    lines = str(refused.value).split("\n")
    assert [line.split(" ")[0] for line in lines[:10]] == [f"a:{i}:" for i in range(10)]
    assert lines[10] == "and 2 more"
    assert len(looked) == 1


@pytest.mark.parametrize("turned", [1, 6])
def test_sizes_are_those_of_the_file_at_full_scale(turned):
    exif = Image.Exif()
    exif[0x112] = turned
    buffer = io.BytesIO()
    Image.fromarray(NOISE).save(buffer, "JPEG", exif=exif)
    assert Media.encoded(buffer.getvalue()).decode() == (60, 40)


def test_frames_of_a_video_must_be_whole_and_of_one_size():
    frames = [Media.array(NOISE), Media.array(NOISE[:20])]
    assert Media.movie([frames[0]] * 3).decode() == (60, 40)
    with pytest.raises(ValueError, match="differ in size: 60x20, 60x40"):
        Media.movie(frames).decode()
    with pytest.raises(OSError, match="identify"):
        Media.movie([frames[0], Media.encoded(b"?")]).decode()


def seeing(folder: Path, pictures: dict[str, bytes], *overrides: str):
    """An assembly on questions about pictures."""
    for name, content in pictures.items():
        (folder / name).write_bytes(content)
    records = [{"prompt": "<image>What is it?", "images": [name], "answer": "1"} for name in pictures]
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, records)))
    options = [
        f"data.train_files={folder / 'data.jsonl'}", "data.val_files=null", "data.train_batch_size=2", "rollout.n=2",
        "scoring.processes=0", "optimizer.warmup_steps=0", "steps=1", "algorithm=grpo",
        "trainer.mini_batch_size=null", f"output_dir={folder / 'run'}",
    ]  # fmt: skip
    return assemble(load("vlm_quickstart", [*options, *overrides]))


SMALL = NOISE[:28, :28]


def test_a_session_refuses_broken_and_extreme_pictures_by_record_before_weights_are_loaded(tmp_path):
    long = np.zeros((2, 402, 3), np.uint8)
    pictures = {"a.png": encoded("PNG", SMALL), "b.jpg": encoded("JPEG")[:700], "c.png": encoded("PNG", long)}
    assembly = seeing(tmp_path, pictures)
    with pytest.raises(UserError) as refused:
        assembly.check_data()
    first, second = str(refused.value).split("\n")
    assert first.startswith(f"{tmp_path / 'data.jsonl'}:2: has a picture {tmp_path / 'b.jpg'} that can't be decoded")
    assert second.startswith(f"{tmp_path / 'data.jsonl'}:3: has a picture {tmp_path / 'c.png'} that is 402 x 2 pixels")
    assert "roles" not in vars(assembly)
    seeing(tmp_path, pictures, "data.decode_check=false").check_data()  # at the user's own risk


def test_a_picture_that_breaks_in_the_course_of_a_run_is_named_by_its_record(tmp_path):
    assembly = seeing(tmp_path, {"a.png": encoded("PNG", SMALL), "b.png": encoded("PNG", SMALL[::-1])})
    assembly.check_data()
    (tmp_path / "b.png").write_bytes(encoded("PNG", SMALL[::-1])[:300])
    with pytest.raises(UserError, match=r"data\.jsonl:2\) shows what can't be read: (?i:.*truncated)"):
        assembly.engine.encode(assembly.train_prompts)
    (tmp_path / "b.png").unlink()
    with pytest.raises(UserError, match=r"data\.jsonl:2\) shows what can't be read: .*No such file"):
        assembly.engine.encode(assembly.train_prompts)


def test_text_that_a_processor_refuses_is_named_by_its_record():
    """As Voxtral's does with the mark of a sound."""

    def encode(*_):
        raise ValueError("[AUDIO] is not supported")

    with pytest.raises(UserError, match=r"^prompt 'what' can't be read: \[AUDIO\] is not supported; put it right"):
        Encoder(SimpleNamespace(encode=encode, audio_rate=None))([Prompt(text="what")])


def test_a_run_goes_on_after_a_picture_was_mended(tmp_path, caplog):
    pictures = {f"{i}.png": encoded("PNG", np.roll(SMALL, i)) for i in range(4)}
    before = seeing(tmp_path, pictures)
    before.prompt_schedule.request(1, 0, Counter())
    state = before.prompt_schedule.stream.state_dict()
    after = seeing(tmp_path, pictures | {"2.png": encoded("PNG", SMALL[::-1])})
    after.prompt_schedule.stream.load_state_dict(state)
    assert after.prompt_schedule.stream.position == 2
    assert f"1 of 4 training records have changed since the checkpoint: {tmp_path / 'data.jsonl'}:3;" in caplog.text


def test_a_broken_picture_to_imitate_is_refused_by_record(tmp_path):
    whole = encoded("PNG", NOISE[:16, :32])
    for name, content in (("a", whole), ("b", whole[:900])):
        (tmp_path / f"{name}.png").write_bytes(content)
        (tmp_path / f"{name}.txt").write_text("the number 123")
    options = [f"data.train_files={tmp_path}", "algorithm=sft", f"output_dir={tmp_path / 'run'}"]
    with pytest.raises(UserError, match=r"b\.png: has a picture .*b\.png that can't be decoded: (?i:.*truncated)"):
        assemble(load("quickstart", options)).check_data()


def test_the_option_is_refused_where_nothing_is_decoded():
    with pytest.raises(ConfigError, match=r"data\.decode_check is given, but diffusion_nft reads no pictures here"):
        load("quickstart", ["data.decode_check=false", "data.train_files=a.txt", "data.val_files=[b.txt, c.txt]"])


def test_of_many_pictures_few_are_decoded_and_a_truncated_one_is_named(tmp_path, monkeypatch):
    decoded = []
    decode = Media.decode
    monkeypatch.setattr(Media, "decode", lambda self: decoded.append(self) or decode(self))
    monkeypatch.setattr("burnish.data.decoding.DECODED", 3)
    files = []
    for i in range(30):
        files.append(tmp_path / f"{i}.{'png' if i % 2 else 'jpg'}")
        files[-1].write_bytes(encoded("PNG" if i % 2 else "JPEG", np.roll(NOISE, i)))
    many = [(f"a:{i}", Media.file(path)) for i, path in enumerate(files)]
    check_media(many, fine)
    assert len(decoded) == 3
    for broken in (14, 15):
        files[broken].write_bytes(files[broken].read_bytes()[:-100])
    with pytest.raises(UserError, match=r"(?s)a:14: has a picture .*can't be decoded.*a:15: has a picture"):
        check_media(many, fine)
    files[4].write_bytes(encoded("PNG", np.zeros((2, 9), np.uint8)))
    with pytest.raises(UserError, match=r"a:4: has a picture .* 9 x 2"):
        check_media(many, lambda width, height: f"is {width} x {height}" if width == 9 else "")


@pytest.mark.parametrize("turned", [1, 6])
@pytest.mark.parametrize("fit", [Fit(), Fit(max_pixels=500), Fit(min_pixels=9000)])
def test_the_header_tells_the_size_that_a_picture_will_have(turned, fit):
    exif = Image.Exif()
    exif[0x112] = turned
    buffer = io.BytesIO()
    Image.fromarray(NOISE).save(buffer, "JPEG", exif=exif)
    media = replace(Media.encoded(buffer.getvalue()), fit=fit)
    assert media.size() == media.image().size


def test_lengths_of_prompts_are_those_of_the_processor_and_no_picture_is_decoded(tmp_path, monkeypatch):
    sizes = [(28, 28), (40, 60), (90, 30), (28, 200)]
    pictures = {f"{i}.png": encoded("PNG", np.resize(NOISE, (*size, 3))) for i, size in enumerate(sizes)}
    assembly = seeing(tmp_path, pictures, "data.max_prompt_length=5000")
    encode = Encoder(assembly.roles.model, bounded=False, cached=0)
    expected = [encode([prompt]).table.lengths[0] for prompt in assembly.train_prompts]
    monkeypatch.setattr(Media, "image", None)
    assert prompt_lengths(encode, assembly.train_prompts, SINGLE_RANK) == expected
    assert len(set(expected)) > 1


def test_a_picture_is_read_once_before_the_run(tmp_path, monkeypatch):
    kinds = ("PNG", "JPEG")
    pictures = {f"{i}.{kinds[i % 2].lower()}": encoded(kinds[i % 2], np.roll(SMALL, i)) for i in range(8)}
    monkeypatch.setattr("burnish.data.decoding.DECODED", 1)
    read: Counter[str] = Counter()

    def counting(path, mode):
        read[Path(path).name] += 1
        return Path(path).open(mode)

    monkeypatch.setattr(headers, "open", counting, raising=False)
    monkeypatch.setattr(Path, "read_bytes", lambda path: counting(path, "rb").read())
    assembly = seeing(tmp_path, pictures, "data.max_prompt_length=5000")
    assembly.check_data()
    assert [prompt.images[0].size() for prompt in assembly.train_prompts] == [(28, 28)] * 8
    assert {name: read[name] for name in pictures} == dict.fromkeys(pictures, 1) | {"0.png": 2}, "one was decoded"


def test_a_picture_that_is_not_used_is_not_decoded(tmp_path, monkeypatch):
    Image.new("RGB", (40, 20)).save(tmp_path / "a.png")
    monkeypatch.setattr(Media, "decode", lambda _: pytest.fail("the header tells its size"))
    with pytest.raises(UserError, match=r"a\.png that is 40 wide"):
        check_media([("here", Media.file(tmp_path / "a.png"))], lambda width, height: f"is {width} wide")
