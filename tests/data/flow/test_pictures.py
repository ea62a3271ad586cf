"""Files of finished pictures: what is read, and how what is wrong is told."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from burnish.data.flow.offline import EncodedPictures, StoredLatents
from burnish.data.flow.pictures import PictureRecord, size_of
from burnish.data.flow.pictures import read_pictures as read_with_keys
from burnish.options.flow import PromptOptions
from burnish.types.batch import Gathered
from burnish.types.columns import read
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.types.rollout import Embeddings
from burnish.utils.errors import UserError

SIZE = (6, 8)  # height, width


def read_pictures(path, holds, *, size) -> list[PictureRecord]:
    return read_with_keys(str(path), holds, size=size, keys=PromptOptions())


def picture(shade: int, size=SIZE) -> Image.Image:
    return Image.fromarray(np.full((*size, 3), shade, dtype=np.uint8))


def png(shade: int, size=SIZE) -> bytes:
    buffer = io.BytesIO()
    picture(shade, size).save(buffer, format="PNG")
    return buffer.getvalue()


def written(folder, records) -> object:
    for name, shade in (("a.png", 10), ("b.png", 20)):
        picture(shade).save(folder / name)
    path = folder / "pictures.jsonl"
    path.write_text("\n".join(json.dumps(record) if isinstance(record, dict) else record for record in records))
    return path


def refused(path, holds="pictures", size=SIZE) -> list[str]:
    with pytest.raises(UserError) as caught:
        read_pictures(path, holds, size=size)
    return str(caught.value).replace(str(path), "FILE").split("\n")


def embed(prompts) -> Gathered[Embeddings]:
    table = Embeddings(tokens=torch.tensor([[[float(len(prompt.text))] * 2] * 3 for prompt in prompts]),
                       pooled=torch.zeros(len(prompts), 2))  # fmt: skip
    return Gathered(table=table, index=torch.arange(len(prompts)))


class Painter:
    """A model without a VAE; it counts what it encodes."""

    encoded = 0

    def noised(self, conditioning):
        return None

    def encode_pictures(self, pictures, conditioning):
        self.encoded += len(pictures)
        return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float()


class TestReading:
    def test_paths_lie_beside_the_file_and_bytes_in_it(self, tmp_path):
        data = base64.b64encode(png(30)).decode()
        path = written(tmp_path, [
            {"prompt": "one", "image": "a.png", "negative_prompt": "blur"},
            "",
            {"caption": "two", "file_name": str(tmp_path / "b.png")},
            {"text": "three", "picture": "data:image/png;base64," + data},
        ])  # fmt: skip
        records = read_pictures(path, "pictures", size=SIZE)
        assert [record.prompt for record in records] == [
            Prompt(text="one", negative="blur"), Prompt(text="two"), Prompt(text="three")
        ]  # fmt: skip
        assert [np.asarray(record.pictures[0].image())[0, 0, 0] for record in records] == [10, 20, 30]
        assert [record.where for record in records] == [f"{path}:{line}" for line in (1, 3, 4)]
        assert len({record.uid for record in records}) == 3

    def test_pairs(self, tmp_path):
        path = written(tmp_path, [{"prompt": "p", "chosen": "a.png", "rejected": "b.png"},
                                  {"prompt": "p", "chosen": "b.png", "rejected": "a.png"}])  # fmt: skip
        one, two = read_pictures(path, "pairs", size=SIZE)
        assert one.pictures == two.pictures[::-1]
        assert one.uid != two.uid

    def test_a_folder_with_captions(self, tmp_path):
        (tmp_path / "deep").mkdir()
        for name, text in (("deep/x.png", "an x\n"), ("y.png", "a y")):
            picture(1).save(tmp_path / name)
            (tmp_path / name).with_suffix(".txt").write_text(text)
        found = read_pictures(tmp_path, "pictures", size=SIZE)
        assert [record.prompt.text for record in found] == ["an x", "a y"]
        picture(1).save(tmp_path / "z.png")
        picture(1).save(tmp_path / "empty.png")
        (tmp_path / "empty.txt").write_text(" \n")
        messages = refused(tmp_path)
        assert "empty prompt in empty.txt" in messages[0]
        assert "has no caption; write its prompt into" in messages[1]

    def test_a_folder_may_be_given_from_where_one_stands(self, tmp_path, monkeypatch):
        inner = tmp_path / "pics" / "inner"
        inner.mkdir(parents=True)
        for place, shade in ((inner.parent / "1", 10), (inner / "2", 20)):
            picture(shade).save(place.with_suffix(".png"))
            place.with_suffix(".txt").write_text("a cat")
        monkeypatch.chdir(tmp_path)
        found = read_pictures(Path("pics"), "pictures", size=SIZE)
        assert [record.where for record in found] == ["pics/1.png", "pics/inner/2.png"]
        monkeypatch.chdir(inner)  # what was found stays found
        assert [int(np.array(record.pictures[0].image())[0, 0, 0]) for record in found] == [10, 20]

    def test_a_picture_on_its_side_is_measured_upright(self):
        buffer = io.BytesIO()
        exif = Image.Exif()
        exif[0x0112] = 6
        picture(1, (6, 8)).save(buffer, format="JPEG", exif=exif)
        media = Media.encoded(buffer.getvalue())
        assert size_of(media) == (8, 6) == media.image().size[::-1]

    def test_what_a_prompt_begins_from_is_no_finished_picture(self, tmp_path):
        single = written(tmp_path, [{"prompt": "p", "images": ["b.png"], "image": "a.png", "mask_image": "a.png"}])
        (record,) = read_pictures(single, "pictures", size=SIZE)
        assert record.pictures == (Media.file(tmp_path / "a.png"),)
        assert record.prompt.images == (Media.file(tmp_path / "b.png"),)
        assert record.prompt.inputs == (("mask_image", Media.file(tmp_path / "a.png")),)
        pair = written(tmp_path, [{"prompt": "p", "image": "b.png", "chosen": "a.png", "rejected": "b.png"}])
        assert read_pictures(pair, "pairs", size=SIZE)[0].prompt.images == (Media.file(tmp_path / "b.png"),)


class TestComplaints:
    def test_all_at_once_by_line(self, tmp_path):
        path = written(tmp_path, [
            {"prompt": "good", "image": "a.png"},
            "?",
            {"image": "a.png"},
            {"prompt": "p"},
            {"prompt": "p", "image": "missing.png"},
            {"prompt": "p", "image": "pictures.jsonl"},
            {"prompt": "p", "image": "a.png", "file_name": "b.png"},
            {"prompt": "p", "image": "data:image/png;base64," + base64.b64encode(png(1, (4, 4))).decode()},
        ])  # fmt: skip
        messages = refused(path)
        expected = {
            2: "not JSON", 3: "has no prompt", 4: "has no image; its keys are 'prompt'", 5: "can't be read",
            6: "can't be decoded", 7: "mean the same", 8: "4 x 4 pixels .* rollout.height x width is 6 x 8",
        }  # fmt: skip
        assert len(messages) == len(expected)
        import re

        for message, (line, words) in zip(messages, expected.items(), strict=True):
            assert re.match(f"FILE:{line}: .*{words}", message), message

    def test_of_pairs(self, tmp_path):
        path = written(tmp_path, [{"prompt": "p", "chosen": "a.png"}, {"prompt": "p", "chosen": "a.png",
                                                                      "rejected": "a.png"}])  # fmt: skip
        messages = refused(path, "pairs")
        assert "has no rejected" in messages[0]
        assert "the same picture as chosen and as rejected" in messages[1]

    def test_sizes_are_those_of_most_where_none_is_asked_for(self, tmp_path):
        data = "data:image/png;base64," + base64.b64encode(png(1, (6, 4))).decode()
        records = [{"prompt": "p", "image": "a.png"}, {"prompt": "p", "image": data}, {"prompt": "q", "image": "b.png"}]
        path = written(tmp_path, records)
        (message,) = refused(path, size=(None, None))
        assert "FILE:2" in message
        assert "most others is 6 x 8" in message
        assert len(read_pictures(path, "pictures", size=None)) == 3

    def test_files_that_hold_something_else(self, tmp_path):
        (tmp_path / "x.xlsx").write_bytes(b"PK")
        assert "can't be read as pictures; give" in refused(tmp_path / "x.xlsx")[0]
        assert "can't be read as pairs; give" in refused(tmp_path, "pairs")[0]
        (tmp_path / "none.jsonl").write_text("\n")
        assert "holds no records" in refused(tmp_path / "none.jsonl")[0]


class TestEncoding:
    def make(self, tmp_path, **kwargs):
        path = written(tmp_path, [{"prompt": "p", "image": "a.png"}, {"prompt": "pp", "image": "b.png"}])
        records = read_pictures(path, "pictures", size=None)
        shape = kwargs.get("shape", (3, *SIZE))
        engine = SimpleNamespace(model=Painter(), condition=embed, latent_shape=lambda prompt: shape)
        return EncodedPictures(records, engine, crop=kwargs.get("crop"), shared=kwargs.get("shared", False))

    def test_every_picture_is_encoded_once(self, tmp_path):
        data = self.make(tmp_path)
        for update in (1, 2, 3):
            given = data.batch([data.records[1], *data.records, data.records[1]], torch.ones(2), update=update, seed=7)
        assert data.engine.model.encoded == 2
        assert given.latents.shape == (4, 1, 3, *SIZE)
        assert given.latents[:, 0, 0, 0, 0].tolist() == [20, 10, 20, 20]
        assert given.conditioning.rows().tokens[:, 0, 0].tolist() == [2, 1, 2, 2]
        assert (given.update, given.version, given.seed) == (3, 2, 7)

    def test_of_a_shared_batch_only_what_is_used_is_encoded(self, tmp_path):
        alone, data = self.make(tmp_path), self.make(tmp_path, shared=True)
        data.check()
        records = [data.records[0], data.records[1], data.records[1]]
        given, expected = (one.batch(records, torch.ones(2), update=1, seed=7) for one in (data, alone))
        assert data.engine.model.encoded == 1, "the one that check looks at"
        own = given.select([1, 2]).to("cpu")
        assert data.engine.model.encoded == 2
        for name in ("latents", "noised"):
            assert torch.equal(read(getattr(own, name)), getattr(expected, name)[1:]), name
        for name in ("conditioning", "unconditional"):
            assert torch.equal(getattr(own, name).rows().tokens, getattr(expected, name).rows().tokens[1:]), name
        fresh = self.make(tmp_path, shared=True)
        fresh.check()
        fresh.batch(records, torch.ones(2), update=1, seed=7)
        fresh.ready(records[1:])
        assert fresh.engine.model.encoded == 2, "before it is learned, what a rank will learn"

    def test_crop_scales_and_cuts_around_the_centre(self, tmp_path):
        data = self.make(tmp_path, crop=(4, 2), shape=(3, 4, 2))
        assert data.batch(data.records, torch.ones(2), update=1, seed=0).latents.shape == (2, 1, 3, 4, 2)

    def test_latents_of_another_shape_are_refused_by_line(self, tmp_path):
        with pytest.raises(UserError, match=r"pictures.jsonl:1: .*rollout.height"):
            self.make(tmp_path, shape=(3, 4, 4)).check()


class TestStored:
    def tensors(self, **changes):
        made = {"chosen": torch.rand(4, 3, *SIZE), "rejected": torch.rand(4, 3, *SIZE), "tokens": torch.rand(4, 3, 2),
                "pooled": torch.rand(4, 2)}  # fmt: skip
        return {name: value for name, value in (made | changes).items() if value is not None}

    def stored(self, tmp_path, **changes):
        path = tmp_path / "pairs.safetensors"
        save_file(self.tensors(**changes), path)
        return StoredLatents(path, "pairs")

    def test_rows(self, tmp_path):
        data = self.stored(tmp_path)
        data.connect(embed, (3, *SIZE))
        data.check()
        given = data.batch([data.records[2], data.records[0]], torch.ones(2), update=1, seed=0)
        stored = load_file(data.path)
        assert torch.equal(read(given.latents), torch.stack([stored["chosen"], stored["rejected"]], 1)[[2, 0]])
        assert torch.equal(read(given.conditioning.rows().tokens), stored["tokens"][[2, 0]])
        assert torch.equal(given.unconditional.rows().tokens, embed([Prompt(text=""), Prompt(text="")]).rows().tokens)
        assert len(set(given.uid)) == 2

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"rejected": None}, "has no tensor rejected"),
            ({"tokens": torch.rand(3, 3, 2)}, "different numbers of rows: tokens 3"),
            ({"rejected": torch.rand(4, 3, 2, 2)}, "differ in shape"),
            ({"pooled": torch.full((4, 2), float("nan"))}, "pooled has NaN or infinite values"),
            ({"negative_tokens": torch.rand(4, 3, 2)}, "only one of negative_tokens"),
        ],
    )
    def test_what_is_wrong_is_told(self, tmp_path, changes, message):
        with pytest.raises(UserError, match=message):
            self.stored(tmp_path, **changes)

    def test_what_only_the_model_can_tell(self, tmp_path):
        data = self.stored(tmp_path)
        data.connect(embed, (3, 9, 9))
        with pytest.raises(UserError, match="holds latents"):
            data.check()
        data = self.stored(tmp_path, tokens=torch.rand(4, 5, 2))
        data.connect(embed, (3, *SIZE))
        with pytest.raises(UserError, match="holds tokens"):
            data.check()
