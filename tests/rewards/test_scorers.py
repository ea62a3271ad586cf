"""Learned rewards on images with tiny weights, against the networks and the pixels that their authors publish."""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file
from scipy.signal import resample_poly
from transformers import AutoModel, AutoTokenizer, BertTokenizer, ClapFeatureExtractor, ClapModel, CLIPTokenizer
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from burnish.rewards.networks.headed import ABOUT
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.types.samples import Clip, Sound
from tests.support import by_hand
from tests.support.scorers import TEXTS, as_tensor, at_checkpoint, checkpoint, examples, prompts, tiny_reward, values

WITH_GRADIENTS = ("clip", "siglip", "hpsv2", "imagereward", "aesthetic", "image_similarity", "hpsv3")
HPS, IMAGE_REWARD, V2 = "HPS_v2.1_compressed.pt", "ImageReward.pt", "sac+logos+ava1-l14-linearMSE.pth"


def close(found, expected, rtol=1e-4, atol=1e-4) -> None:
    torch.testing.assert_close(found, expected.detach(), rtol=rtol, atol=atol)


def processed(name: str) -> torch.Tensor:
    kinds = {"image_similarity": BitImageProcessorPil, "siglip": SiglipImageProcessorPil}
    processor = kinds.get(name.rstrip("2"), CLIPImageProcessorPil).from_pretrained(checkpoint(name))
    return torch.cat([torch.from_numpy(np.stack(processor([one])["pixel_values"])) for one in examples()])


@torch.no_grad()
def cosines(name: str, texts=TEXTS, padded: bool = True):
    """Cosines [4] of the four images and texts by transformers, and the network."""
    network = AutoModel.from_pretrained(checkpoint(name))
    read = AutoTokenizer.from_pretrained(checkpoint(name), split_special_tokens=True)
    how = {"padding": "max_length", "max_length": 64} if name.startswith("siglip") and padded else {"max_length": 77}
    found = []
    for pixels, text in zip(processed(name), texts, strict=True):
        ids = read([text], return_tensors="pt", truncation=True, **how).input_ids
        out = network(input_ids=ids, pixel_values=pixels[None])
        found.append((out.image_embeds * out.text_embeds).sum())
    return torch.stack(found), network


@torch.no_grad()
def embeddings(name: str) -> torch.Tensor:
    """Of length 1, by transformers."""
    network, pixels = AutoModel.from_pretrained(checkpoint(name)), processed(name)
    if name == "image_similarity":
        return F.normalize(network(pixel_values=pixels).last_hidden_state[:, 0], dim=-1)
    return F.normalize(network.get_image_features(pixel_values=pixels).pooler_output, dim=-1)


def asked(*texts: str) -> list[Prompt]:
    return [Prompt(text=text) for text in texts]


def test_scales_of_clip_and_pickscore_and_a_prefix():
    cosine, network = cosines("pickscore")
    scaled = math.exp(network.logit_scale.item()) * cosine
    close(values(tiny_reward("pickscore")), scaled)
    close(values(tiny_reward("pickscore", scale="per_26")), scaled / 26)
    assert "put_away=false" in tiny_reward("pickscore", device="cuda", put_away=True).gradient_refusal()
    cosine, _ = cosines("clip")
    assert float(cosine.min()) < 0 < float(cosine.max())
    for scale, value in (("cosine", cosine), ("x100", 100 * cosine.clamp(min=0)), ("x2.5", 2.5 * cosine.clamp(min=0))):
        close(values(tiny_reward("clip", scale=scale)), value)
    prefixed = [f"A photo depicts {text}" for text in TEXTS]
    close(values(tiny_reward("clip", prefix="A photo depicts ")), cosines("clip", prefixed)[0])
    # a long prompt keeps its end, and a special token in a prompt is text
    odd = ["a cat " * 90, "a cat <|endoftext|> and a dog", "a cat", "<|startoftext|>"]
    close(values(tiny_reward("clip"), asked=asked(*odd)), cosines("clip", odd)[0])


@pytest.mark.parametrize("name", ["siglip", "siglip2"])
def test_siglip_is_the_probability_of_a_pair(name):
    plain = [text.lower().replace(",", "") for text in TEXTS] if name == "siglip" else TEXTS
    cosine, network = cosines(name, plain)
    logits = network.logit_scale.exp() * cosine + network.logit_bias
    for scale, value in (("cosine", cosine), ("logit", logits), ("probability", logits.sigmoid())):
        close(values(tiny_reward(name, scale=scale)), value, atol=1e-5)
    marked = ['  A "Red" Cat,\n on-site! '] * 4
    told = ["a red cat onsite"] * 4 if name == "siglip" else marked
    close(values(tiny_reward(name, scale="cosine"), asked=asked(*marked)), cosines(name, told)[0], atol=1e-5)
    assert (cosines(name, plain, padded=False)[0] - cosine).abs().max() > 1e-2  # padding is part of the text


@torch.no_grad()
def test_clap_is_the_cosine_of_transformers_also_for_a_clip_s_sound_and_the_beginning_of_a_long_one():
    kinds = (ClapModel, AutoTokenizer, ClapFeatureExtractor)
    network, read, hear = (kind.from_pretrained(checkpoint("clap")) for kind in kinds)
    rate, times = hear.sampling_rate, np.arange(4800) / 3200  # at twice its rate, and longer than it hears
    waves = [np.sin(2 * np.pi * pitch * times).astype("f4") / 2 for pitch in (90, 300, 600)]
    heard = [resample_poly(wave.astype(float), 1, 2)[:rate] for wave in waves]
    seen = hear(heard, sampling_rate=rate, return_tensors="pt")["input_features"].float()
    out = network(**read(TEXTS[:3], padding=True, return_tensors="pt"), input_features=seen)
    sounds = [Sound(samples=np.stack([1.5 * wave, 0.5 * wave]), rate=3200) for wave in waves]
    clips = [Clip(frames=np.zeros((2, 4, 4, 3), np.uint8), fps=8.0, sound=sound) for sound in sounds]
    for samples in (sounds, clips):
        scores = torch.tensor([score.value for score in tiny_reward("clap")(samples, asked(*TEXTS[:3]))])
        close(scores, (out.audio_embeds * out.text_embeds).sum(-1), atol=1e-5)


def hps_weights():
    return torch.load(checkpoint("hpsv2") / HPS, weights_only=True)["state_dict"]


@torch.no_grad()
def hps(texts=TEXTS, **how) -> torch.Tensor:
    """HPSv2 by hand, with zeros after the end of a text as open_clip pads."""
    reader, w = CLIPTokenizer.from_pretrained(checkpoint("hpsv2")), hps_weights()
    ids = torch.zeros(len(texts), 77, dtype=torch.long)
    for row, text in zip(ids, texts, strict=True):
        read = torch.tensor(reader(text).input_ids)
        row[: len(read)] = read
    seen = by_hand.clip_image(torch.cat([by_hand.padded(one, 56) for one in examples()]), w, **how)
    return (seen * by_hand.clip_text(ids, w, **how)).sum(-1)


@pytest.fixture
def copied(tmp_path):
    """A copy of a checkpoint, to be changed."""
    return lambda name: shutil.copytree(checkpoint(name), tmp_path / name)


def test_hpsv2_is_the_cosine_of_open_clip_s_networks_on_cleaned_prompts(copied):
    close(values(tiny_reward("hpsv2")), hps(), 0, 1e-5)
    odd, texts = zip(*json.loads(Path(__file__).with_name("answers.json").read_text())["cleaned"].items(), strict=True)
    for four in (slice(0, 4), slice(4, 8)):
        close(values(tiny_reward("hpsv2"), asked=asked(*odd[four])), hps(texts[four]), 0, 1e-5)
    folder = copied("hpsv2")
    (described,) = folder.glob("open_clip*.json")
    told = json.loads(described.read_text())
    told["model_cfg"]["quick_gelu"] = True
    described.write_text(json.dumps(told))
    close(values(tiny_reward("hpsv2", folder)), hps(quick=True), 0, 1e-5)
    close(values(tiny_reward("hpsv2", path=str(folder / HPS))), hps(quick=True), 0, 1e-5)
    described.unlink()  # without a description it is ViT-H/14, of 32 and 24 layers
    with pytest.raises(ValueError, match=r"layers\.2"):
        tiny_reward("hpsv2", folder.rename(folder.with_name("undescribed"))).prepare()


@torch.no_grad()
def test_imagereward_is_the_score_of_blip_s_encoders():
    weights = torch.load(checkpoint("imagereward") / IMAGE_REWARD, weights_only=True)
    reader, expected = BertTokenizer.from_pretrained(checkpoint("imagereward")), []
    for image, text in zip(examples(), TEXTS, strict=True):
        raw = by_hand.image_reward(by_hand.cropped(image, 56), torch.tensor([reader(text).input_ids]), weights)
        expected.append((raw - 0.16717362830052426) / 1.0333394966054072)
    reward = tiny_reward("imagereward")
    close(values(reward), torch.cat(expected), 1e-3, 1e-3)
    long = "a red cat and a blue dog " * 8  # of which 35 tokens are read
    one, two = values(reward, examples()[:1] * 2, [Prompt(text=long), Prompt(text=long + " and more")]).tolist()
    assert one == pytest.approx(two, abs=1e-4)


def test_aesthetic_predictors_are_layers_without_activations_on_an_embedding():
    weights = torch.load(checkpoint("aesthetic") / "head" / V2, weights_only=True)
    x = embeddings("aesthetic")
    for name in [name.removesuffix("weight") for name in weights if name.endswith("weight")]:
        x = F.linear(x, weights[f"{name}weight"].float(), weights[f"{name}bias"].float())
    close(values(tiny_reward("aesthetic")), x[:, 0])


@pytest.mark.parametrize("name", ["image_similarity", "clip", "siglip"])
def test_likeness_and_variety_are_cosines_of_embeddings(name, tmp_path):
    embedded, path = embeddings(name), str(checkpoint(name))
    cosine = embedded @ embedded.T
    close(values(tiny_reward("image_similarity", path=path)), cosine[0], 0, 1e-5)
    close(values(tiny_reward("image_similarity", path=path, mapping="unit")), (1 + cosine[0]) / 2, 0, 1e-5)
    seen = Prompt(text="a cat", images=tuple(map(Media.array, examples()[:2])))
    two = values(tiny_reward("image_similarity", path=path), examples()[2:3], [seen])
    close(two, cosine[2, :2].mean()[None], 0, 1e-5)  # several images count alike
    Image.fromarray(examples()[1]).save(tmp_path / "own.png")
    own = [Prompt(text="", record=json.dumps({"target": str(tmp_path / "own.png")}))]
    to_own, bare = tiny_reward("image_similarity", path=path, against="target"), [Prompt(text="a cat")]
    to_own.check(own)
    close(values(to_own, examples()[2:3], own), cosine[2, 1][None], 0, 1e-5)
    for reward, said in (
        (to_own, "'a cat': its record has no target"),
        (replace(to_own, against=None), "shows no image"),
    ):
        with pytest.raises(ValueError, match=said):
            reward.check(bare)
    others = (cosine.sum(1) - cosine.diagonal()) / 3
    alike = values(tiny_reward("image_variety", path=path, batch_size=3), asked=[Prompt(text="a cat")] * 4)
    close(alike, 1 - others, 0, 1e-5)
    clips = [Clip(frames=np.stack([image] * 2), fps=8.0) for image in examples()]
    close(values(tiny_reward("image_variety", path=path), clips, [Prompt(text="a cat")] * 4), 1 - others, 0, 1e-5)
    nearest = tiny_reward("image_variety", path=path)(examples(), [Prompt(text="a cat")] * 4)
    close(torch.tensor([one.numbers["nearest"] for one in nearest]), 1 - (cosine - 2 * torch.eye(4)).amax(1), 0, 1e-5)
    apart = tiny_reward("image_variety", path=path)(examples(), asked(*"aabc"))
    assert [one.value is None for one in apart] == [False, False, True, True]  # nothing to differ from


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_the_differentiable_score_is_the_score_and_its_gradient_that_of_finite_differences(name):
    reward = tiny_reward(name, dtype="float32")
    expected = values(reward)
    for image, prompt, value in zip(examples(), prompts(), expected, strict=True):  # made larger, smaller and cut
        found = reward.differentiable(as_tensor(image), [prompt])
        assert found.shape == (1,)
        assert abs(found.item() - value.item()) < 0.06 * float(expected.std())
    image = as_tensor(examples()[0]).clamp(0.1, 0.9).requires_grad_()
    reward.differentiable(image, prompts()[1:2]).sum().backward()
    way = F.interpolate(torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(3)), (96, 80))
    with torch.no_grad():
        above, below = (reward.differentiable(image + step * way, prompts()[1:2]).item() for step in (1e-3, -1e-3))
    assert (above - below) / 2e-3 == pytest.approx((image.grad * way).sum().item(), rel=0.03, abs=1e-3)


WORDS = "blip.text_encoder.embeddings.word_embeddings.weight"


@pytest.mark.parametrize(("name", "change", "said"), [
    ("clip", {"logit_scale": torch.tensor(torch.nan)}, "non-finite values in logit_scale"),
    ("hpsv2", {"text_projection": torch.zeros(32, 25)}, "text_projection.weight"),
    ("imagereward", {"blip.visual_encoder.norm.bias": None}, "vision.post_layernorm.bias"),
    ("imagereward", {"blip.other": torch.zeros(1)}, "blip.other"),
    ("imagereward", {WORDS: torch.zeros(9, 100)}, "word_embeddings.weight"),
    ("aesthetic", {"layers.9.weight": torch.zeros(1)}, "layers.9.weight"),
    ("aesthetic", {"layers.0.weight": torch.zeros(32, 99)}, "99 numbers, but the network of path gives 24"),
])  # fmt: skip
def test_weights_must_be_exactly_those_of_the_network(name, change, said, copied):
    folder = copied(name)
    file = folder / {"clip": "model.safetensors", "hpsv2": HPS, "aesthetic": f"head/{V2}"}.get(name, IMAGE_REWARD)
    weights = load_file(file) if name == "clip" else torch.load(file, weights_only=True)
    weights = {key: one for key, one in (weights.get("state_dict", weights) | change).items() if one is not None}
    save_file(weights, file, {"format": "pt"}) if name == "clip" else torch.save(weights, file)
    reward = tiny_reward(name, folder)
    with pytest.raises(ValueError, match=re.escape(said)):
        reward.prepare()


class Harmful:
    def __reduce__(self):
        return print, ("this was run",)


def test_objects_in_a_file_of_torch_are_never_made(copied, capsys):
    folder = copied("hpsv2")
    torch.save({"state_dict": hps_weights(), "args": Harmful()}, folder / HPS)
    with pytest.raises(ValueError, match="can't be read as weights"):
        tiny_reward("hpsv2", folder).prepare()
    assert "this was run" not in capsys.readouterr().out
    torch.save([torch.zeros(1)], folder / HPS)
    with pytest.raises(ValueError, match="holds a list, not weights by name"):
        tiny_reward("hpsv2", folder).prepare()


WRONG = yaml.safe_load(Path(__file__).with_name("wrong_checkpoints.yaml").read_text())


@pytest.mark.parametrize(("name", "options", "changes", "said"), WRONG, ids=lambda value: str(value)[:40])
def test_a_checkpoint_that_is_not_the_reward_s_is_refused(name, options, changes, said, copied):
    if "cuda" in options.values() and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    folder = copied(name) if changes else checkpoint(name)
    for path, change in ((folder / file, change) for file, change in changes.items()):
        if change is None:
            path.unlink()
        elif isinstance(change, str):
            path.write_text(change)
        else:
            told = json.loads(path.read_text())
            told |= {key: told[key] | own if key in told and path.name == ABOUT else own for key, own in change.items()}
            path.write_text(json.dumps(told))
    one = tiny_reward(name, folder, **{key: at_checkpoint(value) for key, value in options.items()})
    with pytest.raises(ValueError, match=said):
        one.check(prompts()) or one.prepare() or one.score(examples()[:1], prompts()[:1])
