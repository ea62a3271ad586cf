"""A reward model of transformers: sequence classification with one label, its logit is the reward."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from burnish.options import Count
from burnish.registry import register
from burnish.rewards.base import Verdict
from burnish.rewards.text.base import LanguageReward, Response
from burnish.utils.errors import UserError
from burnish.utils.paths import resolve
from burnish.utils.weights import complaints_about, load_network, refuse_non_finite

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt


@register("language reward", "reward_model")
class RewardModel(LanguageReward):
    """The logit of a classifier that reads the conversation with the response at its end."""

    path: str
    """Directory in transformers layout with AutoModelForSequenceClassification weights and a tokenizer. With a chat
    template the conversation is written by it; without one prompt and response are a pair of texts."""
    batch_size: Count = 8
    """Responses per forward, padded together; 1 makes a score independent of its neighbours to the last bit."""
    max_length: Count = 4096
    """Longest conversation in tokens; a longer one is missing, never cut."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the network."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where it runs."""
    media: Literal["refuse", "leave_out"] = "refuse"
    """Prompts with pictures or videos, which such a model can't see: refused, or judged by their words alone."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        if not (resolve(self.path) / "config.json").is_file():
            raise UserError(
                f"path of reward reward_model is {self.path!r}, which holds no config.json of transformers; give the "
                "folder of a sequence classifier with one label"
            )
        cut = list(complaints_about(resolve(self.path)))
        if cut:
            raise UserError(f"path of reward reward_model is {self.path!r}: {'; '.join(cut)}")
        for prompt in prompts:
            if self.media == "refuse" and self.judges(prompt) and (prompt.images or prompt.videos):
                raise UserError(
                    f"reward reward_model can't see the pictures of prompt {prompt.text[:60]!r}; let it judge the "
                    "words alone with media=leave_out"
                )

    def prepare(self) -> None:
        _load(self.path, self.dtype, self.device)

    def score(self, responses: Sequence[Response], prompts: Sequence[Prompt]) -> list[Verdict]:
        network, tokenizer = _load(self.path, self.dtype, self.device)
        ids = [_written(tokenizer, r.text, p) for r, p in zip(responses, prompts, strict=True)]
        verdicts = [
            Verdict(None, (), f"{len(one['input_ids'])} tokens are more than max_length={self.max_length}")
            for one in ids
        ]
        short = [i for i, one in enumerate(ids) if len(one["input_ids"]) <= self.max_length]
        short.sort(key=lambda i: len(ids[i]["input_ids"]))  # neighbours of one length need no padding
        for start in range(0, len(short), self.batch_size):
            rows = short[start : start + self.batch_size]
            for i, value in zip(rows, _logits(network, [ids[i] for i in rows]), strict=True):
                verdicts[i] = Verdict(value)
        return verdicts


def _written(tokenizer: Any, response: str, prompt: Prompt) -> dict[str, list[int]]:
    """Token ids of a conversation that ends with the response."""
    if not tokenizer.chat_template:
        said = "\n".join(message.text for message in prompt.turns)
        return dict(tokenizer(said, response))
    chat = [{"role": message.role, "content": message.text} for message in prompt.turns]
    chat.append({"role": "assistant", "content": response})
    return {"input_ids": list(tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False))}


def _logits(network: Any, rows: Sequence[dict[str, list[int]]]) -> list[float]:
    import torch

    config = network.config.get_text_config()
    longest = max(len(row["input_ids"]) for row in rows)
    used = {token for row in rows for token in row["input_ids"]}
    # The network finds the end of a row by its padding. Where it knows none, a token serves that no row holds: the
    # usual choice, the token that ends a text, would make it look one token too early.
    known = config.pad_token_id
    filler = known if known is not None else next(i for i in range(config.vocab_size) if i not in used)
    padded = {
        name: torch.tensor(
            [row[name] + [filler if name == "input_ids" else 0] * (longest - len(row[name])) for row in rows]
        )
        for name in rows[0]
    }
    padded["attention_mask"] = torch.tensor(
        [[i < len(row["input_ids"]) for i in range(longest)] for row in rows]
    ).long()
    config.pad_token_id = filler
    try:
        with torch.inference_mode():
            logits = network(**{name: value.to(network.device) for name, value in padded.items()}).logits
    finally:
        config.pad_token_id = known
    scores: list[float] = logits[:, 0].float().tolist()
    return scores


@cache
def _load(path: str, dtype: str, device: str) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = resolve(path)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    try:
        network = load_network(
            AutoModelForSequenceClassification, folder, dtype=getattr(torch, dtype), trust_remote_code=False
        )
        refuse_non_finite(network, folder)
    except UserError as error:
        raise UserError(f"{folder} is no reward model: {error}") from None
    if network.config.num_labels != 1:
        raise UserError(f"{folder} gives {network.config.num_labels} labels; a reward model gives one")
    return network.to(device).eval(), tokenizer
