"""Prompts of generators from files, with the images that they begin from; every problem is told with its record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from burnish.data.conversation import asked, beside, converse, media_in
from burnish.data.packing import Packer
from burnish.data.pixels import media_of
from burnish.data.records import Record, read_files, read_records
from burnish.data.values import find, listed, templated, text_of
from burnish.options.data import PromptOptions
from burnish.types.media import Media
from burnish.types.prompt import Prompt, Prompts

# keys of published data sets
TEXT = ("prompt", "text", "caption", "messages")
NEGATIVE = ("negative_prompt",)
IMAGES = ("images", "image")
ANSWER = ("answer", "ground_truth", "target", "reward_model.ground_truth")
IMAGE_KEYS = (*IMAGES, "picture", "file_name", "chosen", "rejected")  # what records of images have them under


def read_prompts(
    files: str | Sequence[str], keys: PromptOptions | None = None, *, images: Sequence[str] = IMAGES
) -> Prompts:
    """Read the prompts of all files, in order.

    Args:
        files: .txt, one prompt a line; .jsonl, .json, .csv, .tsv or .parquet, a record each; folders of images
            with their prompts in .txt files, or that the datasets library saved; data sets of the hub; user code.
        keys: under which records have what.
        images: usual keys of the images that a prompt begins from.

    Raises:
        UserError: a file can't be read, holds nothing, or has wrong records; the message names file and row of the
            first ones and counts the others.
    """
    chosen = keys or PromptOptions()
    pack = Packer(lambda record: prompt_of(record, chosen, images=images), by_text=chosen.template is not None)
    records = partial(read_records, prompt=chosen.prompt_key or TEXT[0], image=chosen.images_key or IMAGES[0])
    return Prompts(read_files(files, pack, records, media_folder=chosen.media_folder))


def prompt_of(record: Record, keys: PromptOptions, *, images: Sequence[str] = IMAGES) -> Prompt:
    """The prompt of a record.

    Args:
        record: as it is stored.
        keys: under which it has what.
        images: usual keys of the images that the prompt begins from.

    Raises:
        ValueError: it has no prompt, or a value has the wrong type.
    """
    values = record.values
    key, value = asked(values, TEXT, keys.prompt_key)
    if not key:
        raise ValueError(f"has no {keys.prompt_key or 'prompt'}; {listed(values, 'data.prompt_key')}")
    value = templated(keys.template, value, values)
    _, start_images = find(values, images, keys.images_key, "images_key")
    text, shown = _said(value, key, start_images, record)
    if not text.strip():
        raise ValueError("has an empty prompt")
    negative_key, negative = find(values, NEGATIVE)
    left_out = (*IMAGE_KEYS, keys.images_key, *keys.input_keys)
    return Prompt(
        text=text,
        negative=_said(negative, negative_key, start_images, record)[0] if negative_key else "",
        images=shown,
        inputs=tuple(_inputs(record, keys)),
        conversational=isinstance(value, list),
        **beside(record, key, keys, answers=ANSWER, left_out=left_out),
    )


def _said(value: Any, key: str, images: Any, record: Record) -> tuple[str, tuple[Media, ...]]:
    """A prompt's text and images. Of chat messages, what the user says: the pipeline has a template of its own."""
    media = media_in(record, {"image": ("images", images), "video": ("", None), "audio": ("", None)})
    marked = isinstance(value, str) and images is not None and "<image>" in value
    if not isinstance(value, list) and not marked:
        return text_of(value, key), tuple(media["image"])
    said = converse(value, media, record.folder)
    if said.media["video"] or said.media["audio"]:
        what = "video" if said.media["video"] else "sound"
        raise ValueError(
            f"{key!r} has a {what} among its messages; a generator takes one under a key of its own (video)"
        )
    if said.messages[-1].role != "user":
        raise ValueError(f"{key!r} ends with a message of {said.messages[-1].role!r}; it must end with the user's")
    texts = [message.text.strip("\n") for message in said.messages if message.role == "user"]
    return "\n".join(texts), tuple(said.media["image"])


def _inputs(record: Record, keys: PromptOptions) -> Iterator[tuple[str, Media]]:
    """Further images and videos, by the name of the argument that they are for."""
    for key in sorted(keys.input_keys):
        if (value := record.values.get(key)) is not None:
            # the frames of a mask, or several references
            listed = isinstance(value, list) and bool(value) and isinstance(value[0], str | bytes | dict)
            yield key, media_of(value, "video" if "video" in key or listed else "image", record.folder)
