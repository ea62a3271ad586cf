"""HPSv3, EditReward and VideoAlign against their formulas, written down once more with the library's own parts."""

import json
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from burnish.rewards.networks.headed import HPSV3
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.types.samples import Clip
from tests.support.scorers import checkpoint, tiny_reward

CAT, FOX = Prompt(text="a cat"), Prompt(text='a red fox, "running"')
FRAME = 256 * 28 * 28  # pixels that an image has after resizing
IMAGE, VIDEO = (f"<|vision_start|><|{kind}_pad|><|vision_end|>" for kind in ("image", "video"))


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*shape, 3), dtype=np.uint8)


def reward(name: str, folder=None, **options):
    one = tiny_reward(name, folder, **{"dtype": "float32"} | options)
    one.check([Prompt(text="a cat", images=(Media.array(noise(9, 8, 8)),))])
    return one


def read(folder) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint, by the names of the library's classes."""
    found = {}
    for file in sorted(folder.rglob("*.safetensors")) + sorted(folder.rglob("*.pth")):
        some = load_file(file) if file.suffix == ".safetensors" else torch.load(file, weights_only=True)
        for name, tensor in some.items():
            name = name.removeprefix("base_model.model.")
            if name.startswith("model.") and not name.startswith(("model.visual.", "model.language_model.")):
                name = f"model.language_model.{name.removeprefix('model.')}"
            found[name.removeprefix("model.")] = tensor
    return found


def published(folder, weights, text: str, tokens: list[str], shown) -> torch.Tensor:
    """States at the tokens of the whole text, as the published forward passes have them: embeddings, no positions."""
    config = transformers.AutoConfig.from_pretrained(folder / "base")
    config.text_config.vocab_size = len(weights["language_model.embed_tokens.weight"])
    kind = {"qwen2_vl": transformers.Qwen2VLModel, "qwen2_5_vl": transformers.Qwen2_5_VLModel}[config.model_type]
    model = kind(config).eval()
    body = {name: one for name, one in weights.items() if name.startswith(("visual.", "language_model."))}
    model.load_state_dict({name: one for name, one in body.items() if "lora_" not in name}, strict=True)
    rows, grid, video = shown
    place = "<|video_pad|>" if video else "<|image_pad|>"
    counts = [*(grid.prod(-1) // 4).tolist(), 0]
    full = "".join(part + place * count for part, count in zip(text.split(place), counts, strict=True))
    words = transformers.AutoTokenizer.from_pretrained(folder / "base")
    words.add_special_tokens({"additional_special_tokens": tokens})
    ids = torch.tensor(words(full, add_special_tokens=False).input_ids)[None]
    slots = ids == words.convert_tokens_to_ids(place)
    with torch.no_grad():
        embedded = model.language_model.embed_tokens(ids)
        seen = model.visual(rows, grid_thw=grid).pooler_output
        embedded = embedded.masked_scatter(slots[..., None].expand_as(embedded), seen)
        states = model.language_model(inputs_embeds=embedded).last_hidden_state
    return torch.stack([states[0, int((ids[0] == one).nonzero())] for one in words.convert_tokens_to_ids(tokens)])


def processed(*images: np.ndarray):
    size = {"shortest_edge": FRAME, "longest_edge": FRAME}
    kind = Qwen2VLImageProcessorPil(size=size, patch_size=14, merge_size=2, temporal_patch_size=2)
    made = kind([Image.fromarray(image) for image in images], return_tensors="pt")
    return made["pixel_values"].float(), made["image_grid_thw"].long(), False


def patches(frames: np.ndarray):
    mean, std = (torch.tensor(one).view(3, 1, 1) for one in
                 ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]))  # fmt: skip
    x = (torch.from_numpy(frames).permute(0, 3, 1, 2) / 255 - mean) / std
    x = torch.cat([x, x[-1:]]) if len(x) % 2 else x
    time, high, wide = len(x) // 2, x.shape[2] // 28, x.shape[3] // 28
    rows = [
        x[2 * t : 2 * t + 2, :, 28 * h + 14 * a :, 28 * w + 14 * b :][:, :, :14, :14].transpose(0, 1).flatten()
        for t in range(time) for h in range(high) for w in range(wide) for a in range(2) for b in range(2)
    ]  # fmt: skip
    return torch.stack(rows), torch.tensor([[time, 2 * high, 2 * wide]]), True


def asked(folder, file: str, prompt: Prompt, places: str) -> str:
    template = (folder / file).read_text().replace("{prompt}", prompt.text)
    return f"<|im_start|>user\n{places}{template}<|im_end|>\n<|im_start|>assistant\n"


def mlp(weights, prefix: str, x: torch.Tensor) -> torch.Tensor:
    for i, number in enumerate((0, 3, 5)):
        x = F.linear(x.relu() if i else x, weights[f"{prefix}.{number}.weight"], weights[f"{prefix}.{number}.bias"])
    return x


def test_hpsv3_is_its_formula_of_the_shards_of_an_index(tmp_path):
    folder, images, prompts = checkpoint("hpsv3"), [noise(0, 300, 420), noise(1, 64, 64)], [FOX, CAT]
    weights, shards = load_file(folder / HPSV3), shutil.copytree(folder, tmp_path / "shards")
    named = {name: f"{place % 2}.safetensors" for place, name in enumerate(weights)}
    for file in ("0.safetensors", "1.safetensors"):
        save_file({name: weights[name] for name in weights if named[name] == file}, shards / file)
    (shards / HPSV3).unlink()
    (shards / "a.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
    weights, scores = read(folder), reward("hpsv3", shards).score(images, prompts)
    for image, prompt, score in zip(images, prompts, scores, strict=True):
        given = asked(folder, "template.txt", prompt, IMAGE), ["<|Reward|>"], processed(image)
        mean, spread = mlp(weights, "rm_head", published(folder, weights, *given)[0]).tolist()
        assert score.value == pytest.approx(mean, abs=1e-4)  # cut behind its token, and in a batch
        assert score.numbers["uncertainty"] == pytest.approx(spread, abs=1e-4)
    (shards / "a.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../0.safetensors"}}))
    with pytest.raises(ValueError, match=r"lists '\.\./0.safetensors', which is not a file beside it"):
        reward("hpsv3", shards)


def test_editreward_asks_each_head_its_own_question():
    folder, source, edited = checkpoint("editreward"), noise(2, 64, 96), noise(3, 64, 64)
    prompt, weights, expected = Prompt(text="make it red", images=(Media.array(source),)), read(folder), []
    for head in range(2):
        text = asked(folder, f"template_{head}.txt", prompt, IMAGE * 2)
        states = published(folder, weights, text, ["<|Reward|>"], processed(source, edited))
        expected.append(mlp(weights, f"rm_heads.head_{head}", states[0])[0].item())
    for pool, pooled in (("mean", sum(expected) / 2), ("min", min(expected)), ("sum", sum(expected))):
        (score,) = reward("editreward", pool=pool).score([edited], [prompt])
        assert score.value == pytest.approx(pooled, abs=1e-4)
    assert [score.numbers[f"head_{i}"] for i in range(2)] == pytest.approx(expected, abs=1e-4)
    with pytest.raises(ValueError, match="no image"):
        reward("editreward").check([CAT])


def test_videoalign_is_its_formula_with_the_adapter_and_the_checkpoint_s_constants(tmp_path):
    folder, prompts = checkpoint("videoalign"), [FOX, CAT]
    about = json.loads((folder / "model_config.json").read_text())
    constants, adapter = about["inference_config"], about["peft_lora_config"]
    strength = adapter["lora_alpha"] / adapter["lora_r"]
    # two frames a second, and an even number of them, from the first to the last one
    clips = [Clip(frames=noise(seed, count, 336, 448), fps=fps) for seed, count, fps in ((0, 9, 4.0), (1, 4, 2.0))]
    chosen = [[0, 3, 5, 8], [0, 1, 2, 3]]
    weights = read(folder / "base") | read(folder / "checkpoint-2")
    for name in [one.removesuffix(".lora_A.weight") for one in weights if one.endswith(".lora_A.weight")]:
        down, up = weights[f"{name}.lora_A.weight"], weights[f"{name}.lora_B.weight"]
        weights[f"{name}.weight"] = weights[f"{name}.weight"] + strength * up @ down
    scores = reward("videoalign").score(clips, prompts)
    complete = shutil.copytree(folder, tmp_path / "complete", ignore=lambda *_: ["checkpoint-2"])
    torch.save({name: one for name, one in weights.items() if "lora_" not in name}, complete / "model.pth")
    weighted = reward("videoalign", complete, dimensions={"mq": 2.0, "ta": -1.0}).score(clips, prompts)
    tokens = ["<|VQ_reward|>", "<|MQ_reward|>", "<|TA_reward|>"]
    for row, (clip, prompt) in enumerate(zip(clips, prompts, strict=True)):
        shown = patches(clip.frames[chosen[row]])
        states = published(folder, weights, asked(folder, "template.txt", prompt, VIDEO), tokens, shown)
        raw = (states @ weights["rm_head.weight"].T).diagonal().tolist()
        parts = [(one - constants[f"{name}_mean"]) / constants[f"{name}_std"]
                  for name, one in zip(("VQ", "MQ", "TA"), raw, strict=True)]  # fmt: skip
        assert list(scores[row].numbers.values()) == pytest.approx(parts, abs=1e-3)
        assert scores[row].value == pytest.approx(sum(parts), abs=1e-3)
        assert weighted[row].value == pytest.approx(2 * parts[1] - parts[2], abs=2e-3)
