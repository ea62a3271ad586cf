"""Where the questions of a language model come from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from burnish.options import Count, Tokens
from burnish.registry import options


@options
class LanguageDataOptions:
    """Questions to learn on and questions to judge by, with their pictures and right answers."""

    train_files: str | list[str]
    """Records: .jsonl, .json (a list), .parquet, or a directory that the datasets library saved; several are joined."""
    val_files: str | list[str] | None = None
    """Records for validation; null validates on the training records and says so."""
    prompt_key: str | None = None
    """Key of the question, plain text or chat messages; null looks for prompt, messages, question, problem, query.
    Dots lead into nested objects (extra_info.question)."""
    images_key: str | None = None
    """Key of the pictures; null looks for images and image."""
    videos_key: str | None = None
    """Key of the videos; null looks for videos and video."""
    unmarked: Literal["first", "last", "error"] = "first"
    """Where pictures and videos go that a record has no places for at all: before what the user says first, as data
    sets of TRL mean it, or behind it; error refuses such records."""
    answer_key: str | None = None
    """Key of the right answer; null looks for answer, solution, ground_truth, reward_model.ground_truth, reference,
    target."""
    response_key: str | None = None
    """Key of a response to learn from, in supervised records and judged ones; null looks for response, completion,
    output."""
    label_key: str | None = None
    """Key of the label that says which rewards judge a question; null reads label where that is text."""
    extra_keys: list[str] = Field(default_factory=lambda: ["extra_info"])
    """Further keys that rewards get to see, as prompt.info."""
    system_prompt: str | None = None
    """What the system says first, in front of questions that bring no system message; null says nothing."""
    train_batch_size: Count = 32
    """Prompts per rollout."""
    shuffle: bool = True
    """Draw a new order every epoch; false keeps the order of the records."""
    max_prompt_length: Tokens | None = None
    """Longest question in tokens, pictures included; null takes any. Nothing is ever cut."""
    overlong: Literal["filter", "error"] = "error"
    """What happens to longer ones before the run: filter leaves them out and says how many, error refuses them."""
    decode_check: bool = True
    """Decode every picture and video once before the run begins, in parallel, and name the records of broken ones;
    false reads only headers, and a broken one ends the run when its turn comes."""
