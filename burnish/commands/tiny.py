"""burnish tiny: a pipeline, a language model or a reward of real classes, random weights, small enough for a CPU.

Rewards are written in the layouts in which the real ones are published.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from burnish.models.tiny import ALL, LANGUAGE, Described, Tiny, TinyLanguage, describe, language, read
from burnish.models.tiny.language import draw_weights
from burnish.models.tiny.tokenizers import made, t5
from burnish.rewards.images.learned import (
    AESTHETIC_FILES,
    BLIP_FILE,
    BLIP_HEAD,
    BLIP_NAMES,
    BLIP_SIZES,
    RELEASES,
    blip_towers,
)
from burnish.rewards.networks.contrastive import OPEN_CLIP, OPEN_CLIP_NAMES, TURNED
from burnish.rewards.networks.headed import ABOUT, ADAPTER, FRAME, HPSV3, REST, WRAPPED, Parts
from burnish.rewards.networks.inputs import FILE as PREPROCESSOR
from burnish.rewards.networks.loading import published_name
from burnish.utils import terminal
from burnish.utils.disk import writing
from burnish.utils.errors import UserError
from burnish.utils.paths import MARK, check_output
from burnish.utils.reading import checked_path
from burnish.utils.weights import quietly

if TYPE_CHECKING:
    from torch import Tensor

HIDDEN = 32  # values of a token
SIZE, PATCH = 56, 14  # pixels of an image, and of a patch
SHARED = 24  # width of the space of images and texts
WIDTH = 128  # of BLIP's towers: two heads
HEAD = (0, 3, 5), (HIDDEN, 24, 8, 2)  # numbers and widths of the layers of a head
RANK, ALPHA = 2, 4.0  # of an adapter
ADAPTED = [[name, "weight"] for name in ("q_proj", "v_proj", "o_proj", "gate_proj")]
RATING = "Rate the picture.\nTextual prompt - {prompt}\n\n\nPlease provide the overall ratings of this image: "
QUALITIES = "Rate the clip.\nQuality: <|VQ_reward|>\nMotion: <|MQ_reward|>\nText - {prompt}\nAlignment: <|TA_reward|>\n"
ABOUT_CLIPS = {
    "data_config": {"fps": 2.0, "num_frames": None, "max_frame_pixels": FRAME, "sample_type": "uniform"},
    "model_config": {"use_special_tokens": True, "output_dim": 3},
    "peft_lora_config": {"lora_r": RANK, "lora_alpha": ALPHA},
    "inference_config": {"VQ_mean": 0.5, "VQ_std": 2.0, "MQ_mean": -0.5, "MQ_std": 1.5, "TA_mean": 0.25, "TA_std": 0.5},
}


def tiny(
    name: str | None = None,
    directory: str | None = None,
    *,
    seed: Annotated[int, 0, 9223372036854775807] = 0,
    force: bool = False,
    list_all: bool = False,
) -> int:
    """Write a tiny random model to try recipes with.

    Examples:
        burnish tiny --list                   every pipeline and every language model that can be made
        burnish tiny wan2.2 my_tiny_wan       real classes, random weights: to try a recipe on a CPU in seconds
        burnish tiny qwen3_vl my_tiny_qwen    language models by their model_type
        burnish tiny FluxPipeline my_tiny_flux --seed 1

    Args:
        name: a model such as wan2.2 or qwen3_vl, or a class
        directory (DIR): new folder to write
        seed (N): seed of the weights
        force: replace a model that is there
        list_all (--list): list every name
    """
    if list_all:
        terminal.table(
            ("name", "makes", "class"),
            [
                *((model.name, model.makes, model.kind) for model in ALL),
                *((model.name, "text", model.kind) for model in LANGUAGE),
                *((scorer.name, "scores", scorer.kind) for scorer in SCORERS),
            ],
        )
        return 0
    if name is None or directory is None:
        raise UserError(
            "burnish tiny takes a name and a folder, such as 'burnish tiny wan2.2 my_tiny_wan'; --list shows the names"
        )
    folder, model = checked_path(directory, "DIR"), describe(name, (*SCORERS, *ALL, *LANGUAGE))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        check_output(folder, "tiny", "DIR")
        if not force:
            raise UserError(f"DIR is {folder}, which holds a model; choose another folder, or replace it with --force")
    with terminal.loading_pytorch():
        from burnish.models.tiny.build import write
    if absent := model.missing():
        raise UserError(f"{model.kind} needs {' and '.join(absent)}; run: pip install {' '.join(absent)}")
    with writing(folder), terminal.progress(f"Writing {name}"):
        if folder.is_dir():
            shutil.rmtree(folder)
        writers: dict[Any, Callable[[Any, Path, int], Any]] = {
            Tiny: write, TinyLanguage: language.write, TinyScorer: write_scorer,
        }  # fmt: skip
        writers[type(model)](model, folder, seed)
        (folder / MARK).write_text("tiny")
    terminal.say("\n".join(_usage(model, folder)))
    return 0


def _usage(model: Tiny | TinyLanguage | TinyScorer, folder: Path) -> list[str]:
    """What was written, and the options by which a recipe uses it."""
    if isinstance(model, TinyScorer):
        given = {name: f"[{','.join(value)}]" if isinstance(value, list) else value or "null"
                 for name, value in model.given(folder).items()}  # fmt: skip
        options = [shlex.quote(f"rewards.{model.name}.{name}={value}") for name, value in given.items()]
        return [
            f"{folder} is a checkpoint of reward {model.name} with random weights.",
            f"In a recipe: {' '.join([*options, f'rewards.{model.name}.weight=1'])}",
        ]
    sizes = {name: getattr(model, name, None) for name in ("height", "width", "num_frames")}
    options = [f"rollout.{name}={value}" for name, value in sizes.items() if value is not None]
    return [
        f"{folder} is a {model.kind} of random weights.",
        f"In a recipe: {' '.join([f'model.path={folder}', *options])}",
        *([f"Its prompts bring {', '.join(model.inputs)}."] if isinstance(model, Tiny) and model.inputs else []),
    ]


# learned rewards


@dataclass(frozen=True, kw_only=True)
class TinyScorer(Described):
    """A learned reward at a size that a CPU runs in milliseconds."""

    kind: str = "reward"
    write: Callable[[Path, int], None]
    """Writes a checkpoint of a seed into a folder."""
    options: Mapping[str, str | list[str] | None]
    """Of the reward, for such a folder: DIR stands for it."""

    def given(self, folder: Path) -> dict[str, Any]:
        """The options for a folder."""
        return json.loads(json.dumps(self.options).replace("DIR", json.dumps(str(folder))[1:-1]))  # type: ignore[no-any-return]


def _siglip_tokenizer() -> Any:
    reader = t5()
    reader.pad_token = reader.eos_token  # SigLIP pads with the end
    return reader


TOKENIZERS: dict[str, Callable[[], Any]] = {
    "clip": partial(made, "clip"), "t5": t5, "siglip": _siglip_tokenizer, "siglip2": partial(made, "siglip2"),
}  # fmt: skip


def _network(folder: Path, seed: int, name: str) -> Any:
    """Write a network of the table with its tokenizer and its preprocessing."""
    import transformers

    table = read("rewards")["networks"][name]
    config = dict(table["config"])
    if "tokenizer" in table:
        reader = TOKENIZERS[table["tokenizer"]]()
        words = {"vocab_size": len(reader)} | {token: getattr(reader, token) for token in table["tokens"]}
        config["text_config"] = table["config"]["text_config"] | words
        reader.save_pretrained(folder)
    kind = getattr(transformers, table["class"])
    network = _made(lambda: kind(kind.config_class(**config)), seed)
    network.save_pretrained(folder)
    if "pixels" in table:
        (folder / PREPROCESSOR).write_text(json.dumps(table["pixels"]))
    if "sounds" in table:
        transformers.ClapFeatureExtractor(**table["sounds"]).save_pretrained(folder)
    return network


def _made(make: Callable[[], Any], seed: int) -> Any:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = make()
    draw_weights(network, seed)
    return network


def _hpsv2(folder: Path, seed: int) -> None:
    """open_clip's layout, with the wrapping and the names of the published file."""
    import torch

    network = _network(folder, seed, "open_clip")
    for file in ("config.json", "model.safetensors"):
        (folder / file).unlink()
    weights = {
        published_name(name, OPEN_CLIP_NAMES): value.T.contiguous() if name in TURNED else value
        for name, value in network.state_dict().items()
    }
    for name in [name for name in weights if ".q_proj." in name]:
        thirds = [weights.pop(name.replace(".q_", f".{part}_")) for part in "qkv"]
        weights[name.replace(".q_proj.", ".in_proj_")] = torch.cat(thirds)
    torch.save({"state_dict": weights}, folder / RELEASES["v2.1"])
    vision = {"image_size": SIZE, "layers": 2, "width": HIDDEN, "head_width": HIDDEN // 2, "patch_size": PATCH}
    text = {"context_length": 77, "vocab_size": len(made("clip")), "width": HIDDEN, "heads": 2, "layers": 2}
    (folder / OPEN_CLIP).write_text(
        json.dumps({"model_cfg": {"embed_dim": SHARED, "vision_cfg": vision, "text_cfg": text}})
    )


def _image_reward(folder: Path, seed: int) -> None:
    """BLIP's own layout, with the name of the published file."""
    import torch

    reader = made("blip")
    reader.save_pretrained(folder)
    tower = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2}
    reads = {"vocab_size": len(reader) + 2, "max_position_embeddings": 64, "encoder_hidden_size": WIDTH}
    sizes = {"vision": {**tower, "image_size": SIZE, "patch_size": PATCH}, "text": {**tower, **reads}}
    (folder / BLIP_SIZES).write_text(json.dumps(sizes))
    network = _made(lambda: blip_towers(**sizes), seed)
    # half as large, so that what differs by the rounding of pixels stays small
    state = {name: value / 2 if value.ndim > 1 else value for name, value in network.state_dict().items()}
    weights = {published_name(name, BLIP_NAMES): value for name, value in state.items()}
    torch.save(
        weights | _layers(f"{BLIP_HEAD}layers.", (0, 2, 4, 6, 7), (WIDTH, 24, 16, 8, 4, 1), seed), folder / BLIP_FILE
    )


def _drawn(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """A matrix of such a size that what passes through neither grows nor fades."""
    import torch

    from burnish.utils.random import generator

    return torch.randn(shape, generator=generator(seed, "tiny", name)).div(float(shape[-1]) ** 0.5)


def _layers(prefix: str, numbers: Sequence[int], widths: Sequence[int], seed: int) -> dict[str, Tensor]:
    """Linear layers, one after another; layers of dropout and ReLU have numbers, too."""
    return {
        f"{prefix}{number}.{part}": _drawn(f"{prefix}{number}.{part}", shape, seed)
        for number, (before, after) in zip(numbers, pairwise(widths), strict=True)
        for part, shape in (("weight", (after, before)), ("bias", (after,)))
    }


def _aesthetic(folder: Path, seed: int) -> None:
    import torch

    _network(folder, seed, "clip")
    (folder / "head").mkdir(exist_ok=True)
    layers = _layers("layers.", (0, 2, 4, 6, 7), (SHARED, 32, 16, 8, 4, 1), seed)
    torch.save(layers, folder / "head" / AESTHETIC_FILES["v2"][0])


def _mask2former(folder: Path, seed: int) -> None:
    _network(folder, seed, "mask2former")
    _network(folder / "clip", seed, "clip")


def _hpsv3(folder: Path, seed: int) -> None:
    """One file, with names of old transformers; of its base only configuration and tokenizer."""
    from safetensors.torch import save_file

    weights = _qwen(folder / "base", "qwen2_vl", 1, seed) | _layers("rm_head.", *HEAD, seed)
    save_file({_old(name): value for name, value in weights.items()}, folder / HPSV3)
    (folder / "template.txt").write_text(f"{RATING}<|Reward|> END")


def _editreward(folder: Path, seed: int) -> None:
    """Names of new transformers, and a head for each of two questions."""
    from safetensors.torch import save_file

    weights = _qwen(folder / "base", "qwen2_5_vl", 1, seed)
    for head in range(2):
        weights |= _layers(f"rm_heads.head_{head}.", *HEAD, seed)
        (folder / f"template_{head}.txt").write_text(f"Question {head}. {RATING}<|Reward|>")
    save_file(weights, folder / "model.safetensors")


def _videoalign(folder: Path, seed: int) -> None:
    """An adapter, beside it vision tower, embeddings and head, all wrapped by peft; and its constants."""
    import torch
    from safetensors.torch import save_file

    weights = _qwen(folder / "base", "qwen2_vl", 3, seed, keep=True)
    halves = {}
    for name in [name for name in weights if "language_model" in name and name.split(".")[-2:] in ADAPTED]:
        outputs, inputs = weights[name].shape
        for half, shape in (("A", (RANK, inputs)), ("B", (outputs, RANK))):
            own = f"{WRAPPED}{_old(name).removesuffix('.weight')}.lora_{half}.weight"
            halves[own] = _drawn(f"{name}.{half}", shape, seed)
    rest = {_old(name): value for name, value in weights.items() if ".visual." in name or "embed_tokens" in name}
    rest["rm_head.weight"] = _drawn("rm_head", (3, rest["model.embed_tokens.weight"].shape[1]), seed)
    place = folder / "checkpoint-2"
    place.mkdir()
    save_file(halves, place / ADAPTER)
    torch.save({WRAPPED + name: value for name, value in rest.items()}, place / REST)
    (folder / ABOUT).write_text(json.dumps(ABOUT_CLIPS))
    (folder / "template.txt").write_text(QUALITIES)


def _qwen(folder: Path, family: str, tokens: int, seed: int, *, keep: bool = False) -> dict[str, Tensor]:
    """Write the model that a checkpoint was trained on, and return its weights but those of the language head, with
    rows for the tokens of the reward; ``keep`` its weights in the folder, too."""
    import torch

    found = next(kind for kind in LANGUAGE if kind.name == family)
    vision = {**found.config.get("vision_config", {}), "patch_size": PATCH}  # as published: an image has 256 tokens
    if family == "qwen2_5_vl":
        vision["window_size"] = 8 * PATCH  # pixels
    parts = {name: (kind, {**settings, "patch_size": PATCH}) for name, (kind, settings) in found.parts.items()}
    language.write(replace(found, config={**found.config, "vision_config": vision}, parts=parts), folder, seed)
    file = folder / "model.safetensors"
    weights = {f"model.{name}": value.clone() for name, value in Parts([file]).weights.items()}
    if not keep:
        file.unlink()
    rows = weights["model.language_model.embed_tokens.weight"]
    added = _drawn("tokens", (tokens, rows.shape[1]), seed)
    return weights | {"model.language_model.embed_tokens.weight": torch.cat([rows, added])}


def _old(name: str) -> str:
    """The name that a weight had before transformers 4.52."""
    return name.replace("model.visual.", "visual.").replace("model.language_model.", "model.")


BESIDE = {"path": "DIR", "tokenizer": None}
ON_BASE = {"path": "DIR", "base": "DIR/base", "template": "DIR/template.txt"}
SCORERS = (
    # it descends from a CLIP of open_clip
    TinyScorer(name="pickscore", write=partial(_network, name="pickscore"), options=BESIDE),
    TinyScorer(name="clip", write=partial(_network, name="clip"), options={"path": "DIR"}),
    TinyScorer(name="siglip", write=partial(_network, name="siglip"), options={"path": "DIR"}),
    TinyScorer(name="siglip2", write=partial(_network, name="siglip2"), options={"path": "DIR"}),
    TinyScorer(name="hpsv2", write=_hpsv2, options=BESIDE),
    TinyScorer(name="imagereward", write=_image_reward, options=BESIDE),
    TinyScorer(name="clap", write=partial(_network, name="clap"), options={"path": "DIR"}),
    TinyScorer(name="aesthetic", write=_aesthetic, options={"path": "DIR", "head": "DIR/head"}),
    TinyScorer(name="image_similarity", write=partial(_network, name="dino"), options={"path": "DIR"}),
    TinyScorer(name="image_variety", write=partial(_network, name="dino"), options={"path": "DIR"}),
    TinyScorer(name="geneval_mask2former", write=_mask2former, options={"path": "DIR", "clip": "DIR/clip"}),
    TinyScorer(name="hpsv3", write=_hpsv3, options=ON_BASE),
    TinyScorer(
        name="editreward",
        write=_editreward,
        options={**ON_BASE, "template": ["DIR/template_0.txt", "DIR/template_1.txt"]},
    ),
    TinyScorer(name="videoalign", write=_videoalign, options=ON_BASE),
)


def write_scorer(scorer: TinyScorer, folder: Path, seed: int) -> None:
    """Write a checkpoint into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with quietly():
        scorer.write(folder, seed)
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)  # safetensors writes them for their owner alone
