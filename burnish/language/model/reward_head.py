"""The scalar heads of a reward model: how they are made, applied, written and read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, TypeAdapter

from burnish.types.prompt import Prompt, about_media
from burnish.utils.errors import UserError
from burnish.utils.json_text import read_object

if TYPE_CHECKING:
    from torch import Tensor, nn

    from burnish.language.logprobs import ResponseStates
    from burnish.language.model.universal import LanguageModel
    from burnish.types.media import Media

HEAD = "score.weight"  # as sequence classifiers of transformers call it
FILE = "reward_head.json"
ALONE = "reward_head.safetensors"  # the head beside an adapter


@dataclass(frozen=True)
class HeadFile:
    """What ``reward_head.json`` says of the heads."""

    heads: Annotated[list[str], Field(min_length=1)]
    squashed: bool = False  # a value is sigmoid(score)
    separator: str = ""  # between the steps that are judged one by one; "": responses are judged as a whole
    question: str = ""  # about an image, with {prompt} in it; "": responses are judged
    min_pixels: int | None = None  # of images that it was trained to judge
    max_pixels: int | None = None


def about_image(question: str, prompt: str, images: tuple[Media, ...]) -> Prompt:
    """What a reward model is asked about an image, the last of ``images``: what it was drawn from comes before."""
    return about_media(question.replace("{prompt}", prompt), images)


def new_head(
    model: LanguageModel, count: int, seed: int, *, purpose: str = "reward head", std: float | None = None
) -> nn.Linear:
    """``count`` heads on the last hidden state; small, so that the first scores are near 0.

    Args:
        model: whose states they read.
        count: how many.
        seed: of the run.
        purpose: with the seed, what they are drawn from.
        std: of the weights; None is less than 1 by the width, without a bias.
    """
    import torch

    from burnish.utils import random

    weight = model.head(model.network).weight
    width = weight.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random.key(seed, purpose) % 2**32)
        # drawn on the CPU: a GPU has a generator of its own, with other numbers
        head = torch.nn.Linear(width, count, bias=std is not None, dtype=torch.float32)
        torch.nn.init.normal_(head.weight, std=std or 1 / (width + 1))
        if head.bias is not None:
            torch.nn.init.zeros_(head.bias)
    return head.to(model.device)


def judged(head: Callable[[Tensor], Tensor], states: ResponseStates) -> Tensor:
    """Scores [B, T, H] in float32 from the states before tokens; 0 where the mask is false."""
    import torch

    values = states.all(head(states.hidden.float()))
    out = torch.zeros(*states.mask.shape, values.shape[1], device=values.device)
    return out.masked_scatter(states.mask[:, :, None].expand_as(out), values)


def write_about(folder: Path, about: HeadFile) -> None:
    """Complete the folder of a model to a reward model's, whose head is one more tensor of its weights.

    Where transformers has a sequence classifier of the same kind of model, config.json names it, and it reads the head.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as CLASSIFIERS

    (folder / FILE).write_text(json.dumps(asdict(about), indent=1) + "\n")
    config: dict[str, Any] = read_object(folder / "config.json")
    classifier = CLASSIFIERS.get(config.get("model_type", ""))
    if classifier is not None:
        labels = dict(enumerate(about.heads))
        config |= {"architectures": [classifier], "id2label": {str(number): name for number, name in labels.items()}}
        config["label2id"] = {name: number for number, name in labels.items()}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_head_of_adapter(folder: Path, head: Tensor, about: HeadFile, model_type: str) -> None:
    """Complete an adapter's folder: peft reads the head with it for a sequence classifier, where there is one."""
    from safetensors.torch import load_file, save_file
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as CLASSIFIERS

    (folder / FILE).write_text(json.dumps(asdict(about), indent=1) + "\n")
    weight = head.detach().float().cpu().contiguous()
    if model_type not in CLASSIFIERS:
        save_file({HEAD: weight}, folder / ALONE)
        return
    weights = folder / "adapter_model.safetensors"
    save_file(load_file(weights) | {f"base_model.model.{HEAD}": weight}, weights)
    file = folder / "adapter_config.json"
    told: dict[str, Any] = read_object(file)
    told |= {"task_type": "SEQ_CLS", "modules_to_save": [*(told.get("modules_to_save") or []), "score"]}
    file.write_text(json.dumps(told, indent=2) + "\n")


def is_reward_model(folder: Path) -> bool:
    """Whether a folder is a reward model that Burnish wrote."""
    return (folder / FILE).is_file()


def read_about(folder: Path) -> HeadFile:
    """What the folder of a reward model says of its heads.

    Raises:
        UserError: the file is damaged.
    """
    try:
        return TypeAdapter(HeadFile).validate_python(read_object(folder / FILE))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / FILE} can't be read: {error}; export the reward model again") from error


def read_head(folder: Path) -> Tensor:
    """The weight [H, D] of the heads.

    Raises:
        UserError: no file holds it.
    """
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            if HEAD in opened.keys():  # noqa: SIM118
                return opened.get_tensor(HEAD)  # type: ignore[no-any-return]
    raise UserError(f"{folder} has no tensor {HEAD}, the heads of a reward model; export it again")


def reward_loading_lines(base: Path, adapter: Path | None, kind: str, model_type: str, heads: int) -> list[str]:
    """Python that loads a reward model from ``base`` with transformers alone, and its adapter, if there is one.

    Args:
        base: the model's folder.
        adapter: the adapter's folder.
        kind: class of the model without its head.
        model_type: in its config.json.
        heads: how many there are.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as CLASSIFIERS

    classifier = CLASSIFIERS.get(model_type)
    labels = f", num_labels={heads}" if classifier is not None and adapter is not None else ""
    lines = [f'model = {classifier or kind}.from_pretrained("{base}"{labels})']
    lines += [] if adapter is None else [f'model = peft.PeftModel.from_pretrained(model, "{adapter}")']
    if classifier is not None:
        return lines
    file = base / "model.safetensors" if adapter is None else adapter / ALONE
    return [
        *lines,
        f'head = safetensors.torch.load_file("{file}")["{HEAD}"]  # or the last of more files',
        "score = model(**inputs, output_hidden_states=True).hidden_states[-1][:, -1].float() @ head.T",
    ]
