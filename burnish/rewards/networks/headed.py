"""Qwen2-VL with the heads of a reward in place of its language head: weights, pixels, questions, and scoring.

The published models were trained with plain positions, one per token along all three axes, not with those of
Qwen2-VL's own forward pass. Loading by the library is silently wrong for some checkpoints: a vision tower drawn anew,
an adapter that changes nothing. So names are changed here, adapters are merged by hand, and what is left over or lacks
is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from burnish.language.model.chat import apply_template, read_template, unused_character
from burnish.options import Count, Positive
from burnish.registry import options
from burnish.rewards.base import Score
from burnish.rewards.images.learned import LearnedReward
from burnish.rewards.networks.inputs import CLIP_MEAN, CLIP_STD, FILE, LEVEL
from burnish.rewards.networks.loading import (
    CONFIG,
    Source,
    filled,
    frozen,
    linear_layers,
    read_weights,
    refusal,
    weight_files,
)
from burnish.utils.errors import UserError, listed
from burnish.utils.hub import WORDS
from burnish.utils.json_text import read_object
from burnish.utils.paths import resolve
from burnish.utils.reading import read_text
from burnish.utils.weights import own_config, tokenizer_complaint

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from burnish.types.prompt import Prompt

FRAME = 256 * 28 * 28  # pixels that every image is brought to, and that a frame has at most
KINDS = {"qwen2_vl": "Qwen2VLModel", "qwen2_5_vl": "Qwen2_5_VLModel"}
WRAPPED = "base_model.model."
# files of published heads
HPSV3, ABOUT = "HPSv3.safetensors", "model_config.json"
COMPLETE, ADAPTER, REST = "model.pth", "adapter_model.safetensors", "non_lora_state_dict.pth"
# old names first have no part for the language model; the order matters, as all begin with "model."
RENAMED = (
    ("model.visual.", "visual."), ("model.language_model.", "language_model."), ("visual.", "visual."),
    ("language_model.", "language_model."), ("model.", "language_model."),
)  # fmt: skip


class Parts:
    """Of checkpoints: weights by the names of the model's class without its head, heads, and adapters."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.weights: dict[str, Tensor] = {}
        self.heads: dict[str, Tensor] = {}
        self.adapters: dict[str, dict[str, Tensor]] = {}  # by the weight that they change: A and B
        for file in files:
            for name, tensor in read_weights(file).items():
                own = re.sub(r"\.modules_to_save(?:\.default)?\.", ".", name.replace(WRAPPED, ""))
                self._add(own.replace(".base_layer.", "."), tensor, file)

    def _add(self, name: str, tensor: Tensor, file: Path) -> None:
        if ".original_module." in name or name.startswith("lm_head."):  # nothing is written
            return
        adapter = re.fullmatch(r"(.+)\.lora_([AB])(?:\.\w+)?\.weight", name)
        target = f"{adapter[1]}.weight" if adapter else name
        if target.startswith(("rm_head.", "rm_heads.")) and not adapter:
            self.heads[target] = tensor
            return
        own = next((after + target.removeprefix(known) for known, after in RENAMED if target.startswith(known)), "")
        if not own or "lora_" in target:
            raise UserError(
                f"{file} has {name}, which belongs to no Qwen2-VL with a head; give the checkpoint of this reward"
            )
        if adapter:
            self.adapters.setdefault(own, {})[adapter[2]] = tensor
        else:
            self.weights[own] = tensor

    def merge(self, base: Path, alpha: float | None, where: str) -> None:
        """Add the adapters to the weights of their base: W + alpha / r B A.

        Raises:
            UserError: nothing says by how much they count, or one does not fit.
        """
        if alpha is None:
            raise UserError(
                f"{where} has adapters, and nothing says by how much they count: give alpha (lora_alpha of its "
                "training)"
            )
        self.weights = Parts(weight_files(base)).weights | self.weights
        for target, halves in self.adapters.items():
            try:
                weight, change = self.weights[target], halves["B"].float() @ halves["A"].float()
                merged = weight.float() + (alpha / len(halves["A"]) * change).reshape(weight.shape)
            except (KeyError, RuntimeError) as error:
                raise UserError(
                    f"{where}: the adapter of {target} lacks, or does not fit, what it changes ({error}); give the "
                    "base model that it was trained on"
                ) from None
            self.weights[target] = merged.to(weight.dtype)


@cache
def load_headed(
    files: tuple[Path, ...], base: Path, *, family: str, heads: tuple[str, ...], tokens: tuple[str, ...],
    alpha: float | None, dtype: str, device: str,
) -> Headed:  # fmt: skip
    """A checkpoint; loaded once per process.

    Args:
        files: of the checkpoint.
        base: folder of the model that it was trained on: its configuration, and the weights that adapters change.
        family: model_type that the reward is made for.
        heads: prefixes of the heads.
        tokens: of the reward, in the order in which training added them.
        alpha: of the adapters; None where there are none.
        dtype: of the network; heads are float32.
        device: where it goes.

    Raises:
        UserError: weights lack, are left over or don't fit.
    """
    import transformers
    from torch import nn

    where, parts = ", ".join(file.name for file in files), Parts(files)
    if parts.adapters:
        parts.merge(base, alpha, where)
    config: Any = own_config(transformers.AutoModel, base)
    if config.model_type != family:
        raise UserError(f"base is {base}, a {config.model_type}; this reward was trained on a {family}: give one")
    # training added tokens, and cut the rows that fill up the published vocabulary
    if (embeddings := parts.weights.get("language_model.embed_tokens.weight")) is not None:
        config.get_text_config().vocab_size = len(embeddings)
    if strange := sorted(name for name in parts.heads if not name.startswith(heads)):
        raise UserError(f"{where} has {listed(strange)}, heads that this reward does not have")
    body = filled(lambda: getattr(transformers, KINDS[family])(config), parts.weights, where, dtype)
    each = [{name: one for name, one in parts.heads.items() if name.startswith(prefix)} for prefix in heads]
    tops = nn.ModuleList([linear_layers(weights, where, relu=True) for weights in each])
    modules = frozen(nn.ModuleDict({"body": body, "heads": tops}), files[0], device)
    return Headed(modules, base, tokens, config)


@dataclass(frozen=True)
class Patches:
    """What the vision tower gets of one image or clip."""

    rows: Tensor  # [N, 3 * T * P * P]: channel, time, y, x
    grid: tuple[int, int, int]  # time, height, width, in patches
    tokens: int  # of the language model


class Geometry:
    """How a checkpoint's vision tower cuts images, without its processors: those of videos need torchvision."""

    def __init__(self, folder: Path, vision: Any) -> None:
        """Args: ``vision`` is the configuration of the tower; the processor's file in the folder names the colours."""
        told = read_object(folder / FILE) if (folder / FILE).is_file() else {}
        self.patch: int = vision.patch_size
        self.merge: int = vision.spatial_merge_size  # patches along a side that become one token
        self.temporal: int = vision.temporal_patch_size  # frames of a patch
        self.mean, self.std = told.get("image_mean", CLIP_MEAN), told.get("image_std", CLIP_STD)

    def size(self, height: int, width: int, least: int, most: int) -> tuple[int, int]:
        """Sides in whole tokens, within bounds of their pixels, as near to the shape as they can be."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        return smart_resize(height, width, self.patch * self.merge, least, most)  # type: ignore[no-any-return]

    def image(self, image: np.ndarray) -> Patches:
        """An image uint8 [H, W, 3], resized by Pillow."""
        import numpy as np
        import torch
        from PIL import Image

        height, width = self.size(image.shape[0], image.shape[1], FRAME, FRAME)
        resized = Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC)
        return self.cut(torch.from_numpy(np.array(resized)).permute(2, 0, 1)[None] * LEVEL)

    def tensor(self, image: Tensor) -> Patches:
        """The same of an image [3, H, W] in [0, 1], with gradients; Pillow rounds between its two passes."""
        return self.cut(self._resized(image.float()[None], FRAME, FRAME).clamp(0, 1))

    def clip(self, frames: np.ndarray, least: int, most: int) -> Patches:
        """Frames uint8 [F, H, W, 3], resized as torchvision resizes tensors: on floats, and rounded."""
        import torch

        x = self._resized(torch.from_numpy(frames).permute(0, 3, 1, 2).float(), least, most)
        return self.cut(x.clamp(0, 255).round() * LEVEL)

    def cut(self, frames: Tensor) -> Patches:
        """Frames [F, 3, H, W] in [0, 1], whose sides are whole tokens; the last is repeated to fill a patch."""
        import torch

        mean, std = (frames.new_tensor(value).view(1, 3, 1, 1) for value in (self.mean, self.std))
        x = (frames - mean) / std
        if lacking := -len(x) % self.temporal:
            x = torch.cat([x, x[-1:].expand(lacking, -1, -1, -1)])
        t, p, m = self.temporal, self.patch, self.merge
        count, (height, width) = len(x) // t, x.shape[2:]
        grid = count, height // p, width // p
        blocks = x.reshape(count, t, 3, height // (p * m), m, p, width // (p * m), m, p)
        rows = blocks.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(-1, 3 * t * p * p)
        return Patches(rows, grid, grid[0] * grid[1] * grid[2] // m**2)

    def _resized(self, x: Tensor, least: int, most: int) -> Tensor:
        """Images [B, 3, H, W] of another size. Without antialiasing torch has another kernel than Pillow."""
        import torch.nn.functional as F

        size = self.size(x.shape[2], x.shape[3], least, most)
        if tuple(x.shape[2:]) == size:
            return x
        return F.interpolate(x, size, mode="bicubic", antialias=True, align_corners=False)


@dataclass(frozen=True)
class Question:
    """One row of a batch."""

    ids: list[int]
    ends: list[int]  # where the tokens of the reward are
    shown: Sequence[Patches]
    video: bool


class Headed:
    """A network without its language head, the reward's heads in float32, and the tokens of the base model with those
    that the reward added. Attention is causal: what follows the last token of the reward is left out."""

    def __init__(self, modules: Any, base: Path, tokens: Sequence[str], config: Any) -> None:
        """Args: ``modules`` are body and heads, ``tokens`` the reward's, in the order in which training added them."""
        from transformers import AutoTokenizer

        tokenizer: Any = AutoTokenizer.from_pretrained(base, local_files_only=True, trust_remote_code=False)
        tokenizer.add_tokens(list(tokens), special_tokens=True)
        self.modules, self.base, self.tokenizer = modules, base, tokenizer
        self.marks: list[int] = tokenizer.convert_tokens_to_ids(list(tokens))
        rows = config.get_text_config().vocab_size
        if max(self.marks) >= rows:
            raise UserError(
                f"the checkpoint knows {rows} tokens, and {tokens[-1]} would be number {max(self.marks)}; give the "
                "base whose tokenizer it was trained with"
            )
        tokenizer.chat_template = read_template(base, tokenizer, vision=True)
        if tokenizer.chat_template is None:
            raise UserError(f"base is {base}, whose tokenizer has no chat template; give the instruct model")
        self.placeholders = {False: config.image_token_id, True: config.video_token_id}
        self.geometry = Geometry(base, config.vision_config)
        special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        self.control = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))))

    def question(self, template: str, text: str, shown: Sequence[Patches], *, video: bool = False) -> Question:
        """A template with the prompt in its place, behind what is shown.

        Tokens that a prompt writes down stay text: they are split where its control tokens are.

        Raises:
            UserError: the chat template writes other placeholders than one for each thing that is shown.
        """
        mark = unused_character(template + text)
        cut = self.control.sub(lambda token: token[0][0] + mark + token[0][1:], text)
        parts = [{"type": "video" if video else "image"} for _ in shown]
        content = [*parts, {"type": "text", "text": template.replace("{prompt}", cut)}]
        rendered = apply_template(self.base, self.tokenizer, [{"role": "user", "content": content}], prompt=True)
        pieces = (self.tokenizer(piece, add_special_tokens=False).input_ids for piece in rendered.split(mark) if piece)
        ids = list(chain.from_iterable(pieces))
        placeholder = self.placeholders[video]
        if ids.count(placeholder) != len(shown):
            raise UserError(
                f"by the chat template of base a question has {ids.count(placeholder)} places for {len(shown)} "
                "images; give the instruct model that the reward was trained on"
            )
        counts = iter(patches.tokens for patches in shown)
        wide = list(chain.from_iterable([i] * (next(counts) if i == placeholder else 1) for i in ids))
        ends = [wide.index(mark_id) for mark_id in self.marks]
        return Question(wide[: max(ends) + 1], ends, shown, video)

    def outputs(self, questions: Sequence[Question], head: int = 0) -> Tensor:
        """Outputs [B, K, O] of a head at the K tokens of the reward, of last hidden states in float32."""
        import torch

        device, video = next(self.modules.parameters()).device, questions[0].video
        longest = max(len(question.ids) for question in questions)
        # causal: what fills a row up behind its last token of the reward changes nothing before it
        ids = torch.tensor([[*one.ids, *[self.marks[0]] * (longest - len(one.ids))] for one in questions])
        positions = torch.arange(longest).expand(3, len(questions), longest)
        shown = [patches for question in questions for patches in question.shown]
        pixels = {
            "pixel_values_videos" if video else "pixel_values": torch.cat([one.rows for one in shown]).to(device),
            "video_grid_thw" if video else "image_grid_thw": torch.tensor([one.grid for one in shown], device=device),
        }
        body, top = self.modules["body"], self.modules["heads"][head]
        out = body(input_ids=ids.to(device), position_ids=positions.to(device), use_cache=False, **pixels)
        ends = torch.tensor([question.ends for question in questions], device=device)
        states = out.last_hidden_state[torch.arange(len(questions), device=device)[:, None], ends]
        return top(states.float())  # type: ignore[no-any-return]


@options
class HeadedReward(LearnedReward):
    """Base of rewards by a Qwen2-VL with heads."""

    family: ClassVar[str] = "qwen2_vl"
    heads: ClassVar[tuple[str, ...]] = ("rm_head.",)
    tokens: ClassVar[tuple[str, ...]] = ("<|Reward|>",)
    published: ClassVar[tuple[str, ...]] = ()  # files of the repository, that by which it is found first

    base: str = "Qwen/Qwen2-VL-7B-Instruct"
    """Directory, or org/name or org/name@REVISION on the hub, of the model that it was trained on: its configuration
    and tokenizer; and its weights, where the checkpoint has an adapter."""
    alpha: Positive | None = None
    """lora_alpha of an adapter's training; null reads it from what lies beside the weights."""
    batch_size: Count = 4
    """Samples per forward pass; 1 makes scores bit for bit independent of the batch."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Precision of the network, as published; its heads are float32."""

    def sources(self) -> tuple[Source, ...]:
        index = self.published[0] if self.published else CONFIG
        return (
            Source(index=index, files=self.published, complaint=lambda place: refusal(self.files, place)),
            Source("base", CONFIG, (CONFIG, "*.jinja", *WORDS), self.base_complaint),
        )

    def base_complaint(self, place: Path) -> str:
        """Why the base can't be read."""
        if not (place / CONFIG).is_file():
            return f"{place} has no {CONFIG}; give the folder of the model that the reward was trained on"
        return tokenizer_complaint(place)

    def files(self, place: Path) -> tuple[Path, ...]:
        """The files of weights in the directory that ``path`` means.

        Raises:
            UserError: there are none, or several that may be meant.
        """
        return weight_files(place, self.published)

    def check(self, prompts: Sequence[Prompt]) -> None:
        super().check(prompts)
        self.questions()

    def questions(self) -> list[str]:
        """The texts of the questions, exactly as their files have them: white space before the reward's tokens changes
        the score.

        Raises:
            UserError: one can't be read, or lacks the prompt or a token.
        """
        named: str | Sequence[str] = vars(self)["template"]
        return [self._question(file) for file in ([named] if isinstance(named, str) else named)]

    def _question(self, file: str) -> str:
        option = f"template of reward {self.name} is {file}"
        try:
            text = read_text(Path(resolve(file)))
        except UserError as error:
            raise UserError(f"{option}: {error}") from None
        if wrong := [what for what in ("{prompt}", *self.tokens) if text.count(what) != 1]:
            raise UserError(f"{option}, in which {wrong[0]} stands {text.count(wrong[0])} times; it must stand once")
        if [*self.tokens] != sorted(self.tokens, key=text.index):
            raise UserError(f"{option}, whose tokens must come in the order {', '.join(self.tokens)}")
        return text

    def adapter_alpha(self, place: Path) -> float | None:
        """By how much an adapter of a directory counts."""
        return self.alpha

    def load(self) -> Headed:
        place = self.folder()
        return load_headed(
            self.files(place), self.folder(self.sources()[1]), family=self.family, heads=self.heads,
            tokens=self.tokens, alpha=self.adapter_alpha(place), dtype=self.dtype, device=self.resting,
        )  # fmt: skip

    def read(self, count: int, question: Callable[[Headed, int], Question], head: int = 0) -> list[Tensor]:
        """Outputs [K, O] of a head at the K tokens of the reward, for each of ``count`` samples.

        Args:
            count: of the samples.
            question: about one of them.
            head: its number.
        """
        loaded = self.load()

        def outputs(rows: Sequence[int]) -> Sequence[Tensor]:
            return loaded.outputs([question(loaded, row) for row in rows], head).cpu().unbind(0)

        return self.in_batches(loaded.modules, range(count), outputs)


def score_with(value: float, **numbers: float) -> Score:
    """With its parts, which are logged and named in the note."""
    return Score(value, ", ".join(f"{name} {part:.3f}" for name, part in numbers.items()), numbers)
