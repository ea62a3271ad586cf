"""Tokenizers of the real classes, made here: they know a few words and can spell all others."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from burnish.models.tiny.words import CHAT, CONTROL, TEXT
from burnish.utils.json_text import parse_json

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>", "<|audio_start|>", "<|audio_end|>",
)  # fmt: skip
START = "<|begin_of_text|>"
LLAMA = ("<image>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
MERGES = 192  # pairs that a tokenizer of byte pairs joins
LONGEST = 4096  # tokens, where a class has no length of its own


@cache
def byte_pairs(suffix: str = "") -> tuple[list[str], list[tuple[str, str]]]:
    """The 256 symbols of bytes, and the pairs that occur most often in our text."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    learner = Tokenizer(models.BPE())
    if suffix:  # of CLIP: words end with it, and have no capitals
        learner.normalizer = normalizers.Lowercase()
        learner.pre_tokenizer = pre_tokenizers.Whitespace()
    else:
        learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=2 * len(letters) + MERGES, min_frequency=2, show_progress=False, initial_alphabet=letters,
        end_of_word_suffix=suffix,
    )  # fmt: skip
    learner.train_from_iterator(TEXT.splitlines(), trainer)
    merges = [(left, right) for left, right in parse_json(learner.to_str())["model"]["merges"][:MERGES]]
    return [*letters, *(f"{letter}{suffix}" for letter in letters if suffix)], merges


def vocabulary(tokens: list[str]) -> dict[str, int]:
    """The number of each token; one that is there twice counts once."""
    return {token: number for number, token in enumerate(dict.fromkeys(tokens))}


def clip() -> Any:
    """CLIP's, of 77 tokens."""
    from transformers import CLIPTokenizer

    letters, merges = byte_pairs("</w>")
    joined = [left + right for left, right in merges]
    kind: Any = CLIPTokenizer  # its annotation of merges forgets pairs
    words = vocabulary([*letters, *joined, "<|startoftext|>", "<|endoftext|>"])
    return kind(vocab=words, merges=merges, model_max_length=77)


def bert() -> Any:
    """BERT's, of 77 tokens, which spells every word."""
    from transformers import BertTokenizer

    letters = [chr(code) for code in range(33, 127)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    return BertTokenizer(vocab=vocabulary(words), model_max_length=77)


def qwen() -> Any:
    """Qwen's, with the tokens of pictures and a chat template."""
    from transformers import Qwen2Tokenizer

    letters, merges = byte_pairs()
    kind: Any = Qwen2Tokenizer
    made = kind(
        vocab=vocabulary([*letters, *(left + right for left, right in merges)]), merges=merges,
        unk_token=None, bos_token=None, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=LONGEST,
    )  # fmt: skip
    made.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    made.chat_template = CHAT
    return made


def t5() -> Any:
    """T5's: pieces of a unigram model."""
    from transformers import T5Tokenizer

    words = sorted({word for word in TEXT.split() if word.isalpha()})
    letters = [chr(code) for code in range(33, 127)]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -3.0)]
    pieces += [(f"\u2581{word}", -4.0) for word in words] + [(letter, -8.0) for letter in letters]
    return T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=512)


def sentence_pieces(special: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and pairs as Gemma and Llama have them: bytes have names, a space is a low line."""
    named = [f"<0x{number:02X}>" for number in range(256)]
    joined = ["\u2581" + word for word in sorted({word for word in TEXT.split() if word.isalpha()})]
    tokens, merges = [*special, *named, "\u2581", *(chr(code) for code in range(33, 127))], []
    known = set(tokens)
    for word in joined:
        left = word[0]
        for right in word[1:]:
            if left + right not in known:
                merges.append((left, right))
                known.add(left + right)
                tokens.append(left + right)
            left += right
    return vocabulary(tokens), merges


def gemma() -> Any:
    """Gemma's, with the tokens of pictures."""
    from transformers import GemmaTokenizer

    turns = ["<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"]
    words, merges = sentence_pieces(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"])
    kind: Any = GemmaTokenizer
    made = kind(vocab=words, merges=merges, model_max_length=LONGEST, padding_side="right", add_bos_token=True)
    made.add_special_tokens({"additional_special_tokens": turns})
    made.chat_template = CHAT
    return made


def llama() -> Any:
    """Llama's, which pads with its last token."""
    from transformers import LlamaTokenizer

    words, merges = sentence_pieces(["<unk>", "<s>", "</s>"])
    kind: Any = LlamaTokenizer
    made = kind(vocab=words, merges=merges, pad_token="</s>", model_max_length=LONGEST, add_bos_token=True)
    made.add_special_tokens({"additional_special_tokens": list(LLAMA)})
    made.chat_template = CHAT
    return made


def generic() -> Any:
    """One of byte pairs without a class of its own, as GLM, Mistral and SmolLM have it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters, merges = byte_pairs()
    words = vocabulary([*letters, *(left + right for left, right in merges)])
    made = Tokenizer(models.BPE(vocab=words, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=START, eos_token="<|end_of_text|>", pad_token="<|endoftext|>",
        model_max_length=LONGEST, padding_side="left",
    )  # fmt: skip
    fast.add_special_tokens({"additional_special_tokens": [*SPECIAL[1:], *CONTROL]})
    fast.chat_template = CHAT
    start = fast.convert_tokens_to_ids(START)
    fast.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A", pair=f"{START} $A $B", special_tokens=[(START, start)]
    )
    return fast


def byt5() -> Any:
    """ByT5's, which has a vocabulary of its own: the bytes."""
    from transformers import ByT5Tokenizer

    return ByT5Tokenizer()


TOKENIZERS: dict[str, Callable[[], Any]] = {
    "CLIPTokenizer": clip, "CLIPTokenizerFast": clip,
    "BertTokenizer": bert,
    "T5Tokenizer": t5, "T5TokenizerFast": t5,
    "Qwen2Tokenizer": qwen, "Qwen2TokenizerFast": qwen,
    "GemmaTokenizer": gemma, "GemmaTokenizerFast": gemma,
    "LlamaTokenizer": llama, "LlamaTokenizerFast": llama,
    "PreTrainedTokenizerFast": generic, "TokenizersBackend": generic,
    "ByT5Tokenizer": byt5,
}  # fmt: skip
