"""Tokenizers of the real classes, made here: they know a few words and can spell all others. And how they write a
conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from burnish.models.tiny import read
from burnish.utils.json_text import parse_json

# words that prompts and the templates of pipelines are made of
TEXT = """
a photo of a red fox in the snow, next to a small house with a blue door and a green tree
the number three is written on the wall; a lighthouse by the sea at night, an oil painting of a dog and a cat
Describe the image by detailing the color, shape, size, texture, quantity, text, spatial relationships of the
objects and background: Describe the key features of the input image (color, shape, size, texture, objects,
background), then explain how the user's text instruction should alter or modify the image.
Generate a new image that meets the user's requirements while maintaining consistency with the original input
where appropriate. You are an assistant designed to generate superior images with the superior degree of
image-text alignment based on textual prompts or user prompts. Picture 1: user assistant system
The video moves slowly from left to right while the camera follows the ball, and the music plays in the background
make it a watercolor painting, remove the car, add a hat to the person, put two apples on the table
"""
# of models that write them with other marks than Qwen's; a tokenizer must have them as single tokens
CONTROL = ("<|begin_of_text|>", "<|end_of_text|>", "[gMASK]", "<sop>", "[INST]", "[/INST]", "[IMG]")

CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

PAD, START = "<|endoftext|>", "<|begin_of_text|>"
MERGES = 192  # pairs that a tokenizer of byte pairs joins
LONGEST = 4096  # tokens, where a class has no length of its own
LETTERS = tuple(map(chr, range(33, 127)))


def alphabet() -> list[str]:
    """The 256 bytes as byte pairs have them."""
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


@cache
def byte_pairs() -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens of the 256 bytes and of the pairs that occur most often in our text, and these pairs."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=2 * len(alphabet()) + MERGES, min_frequency=2, show_progress=False, initial_alphabet=alphabet()
    )
    learner.train_from_iterator(TEXT.splitlines(), trainer)
    merges = [(left, right) for left, right in parse_json(learner.to_str())["model"]["merges"][:MERGES]]
    return [*alphabet(), *(left + right for left, right in merges)], merges


def word_pairs() -> tuple[list[str], list[tuple[str, str]]]:
    """The same of CLIP, whose words have an end. Its pairs are a list: which one a trainer takes first is chance."""
    merges = [(left, right) for left, right in map(str.split, read("tokenizers")["pairs of words"])]
    ends = [f"{letter}</w>" for letter in alphabet()]
    return [*alphabet(), *ends, *(left + right for left, right in merges)], merges


def vocabulary(tokens: list[str]) -> dict[str, int]:
    """The number of each token; one that is there twice counts once."""
    return {token: number for number, token in enumerate(dict.fromkeys(tokens))}


def of_class(named: str, **given: Any) -> Any:
    """An object of a class of transformers."""
    import transformers

    return getattr(transformers, named)(**given)


def t5() -> Any:
    """T5's: pieces of a unigram model."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -3.0)]
    pieces += [(f"\u2581{word}", -4.0) for word in words(TEXT)] + [(letter, -8.0) for letter in LETTERS]
    return of_class("T5Tokenizer", vocab=pieces, extra_ids=0, model_max_length=512)


def words(text: str) -> list[str]:
    """The words of a text, each once."""
    return sorted({word for word in text.split() if word.isalpha()})


def sentence_pieces() -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens and pairs as Gemma and Llama have them: bytes have names, a space is a low line."""
    named = [f"<0x{number:02X}>" for number in range(256)]
    tokens, merges = [*named, "\u2581", *LETTERS], []
    known = set(tokens)
    for word in words(TEXT):
        left = "\u2581"
        for right in word:
            if left + right not in known:
                merges.append((left, right))
                known.add(left + right)
                tokens.append(left + right)
            left += right
    return tokens, merges


def letters(*beside: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens as BERT has them, which can spell every word, and some words beside."""
    return [*LETTERS, *(f"##{letter}" for letter in LETTERS), *beside], []


WORDS: dict[str, Callable[[], tuple[list[str], list[tuple[str, str]]]]] = {
    "pairs": byte_pairs, "pairs of words": word_pairs, "pieces": sentence_pieces, "letters": letters,
    "letters and words": partial(letters, *words(TEXT.lower())),
}  # fmt: skip


def made(name: str, **more: Any) -> Any:
    """A tokenizer of the table ``tokenizers``, with further arguments of its class."""
    given = {**read("tokenizers")[name], **more}
    tokens, merges = WORDS[given.pop("of")]()
    given["vocab"] = vocabulary([*given.pop("before", ()), *tokens, *given.pop("after", ())])
    special = given.pop("special", None)
    tokenizer = of_class(given.pop("class"), **given, **({"merges": merges} if merges else {}))
    return tokenizer if special is None else talking(tokenizer, special)


def pieces(eos_token: str, start: str = "<s>", **more: Any) -> Any:
    """One of byte pairs without a class of its own, as GLM, Mistral and SmolLM have it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens, merges = byte_pairs()
    made: Any = Tokenizer(models.BPE(vocab=vocabulary(tokens), merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=start, eos_token=eos_token, pad_token=PAD, model_max_length=LONGEST,
        padding_side="left", **more,
    )  # fmt: skip


def talking(tokenizer: Any, special: Sequence[str], template: str = CHAT) -> Any:
    """A tokenizer with further tokens and a chat template."""
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    tokenizer.chat_template = template
    return tokenizer


def generic() -> Any:
    """``pieces`` that begins every text with a token."""
    from tokenizers.processors import TemplateProcessing

    special = read("tokenizers")["Qwen2Tokenizer"]["special"]
    made = talking(pieces("<|end_of_text|>", START), [*special[1:], *CONTROL])
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{START} $A", pair=f"{START} $A $B", special_tokens=[(START, made.convert_tokens_to_ids(START))]
    )
    return made


TOKENIZERS: dict[str, Callable[[], Any]] = {
    **{name: partial(made, name) for name in read("tokenizers") if name.endswith("Tokenizer")},
    "T5Tokenizer": t5,
    "PreTrainedTokenizerFast": generic, "TokenizersBackend": generic,
    "ByT5Tokenizer": partial(of_class, "ByT5Tokenizer"),  # it has a vocabulary of its own: the bytes
}  # fmt: skip
TOKENIZERS |= {f"{name}Fast": TOKENIZERS[name] for name in list(TOKENIZERS) if name.endswith("Tokenizer")}
