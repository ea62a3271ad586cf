"""Measures what Burnish makes of each tiny language model of transformers, and writes docs/language_models.md.

    python tools/language_table.py                        # every tiny model; about 10 minutes on an idle core
    python tools/language_table.py --only gemma3 qwen3_5  # these anew; the others as they were measured before
    python tools/language_table.py --check gemma3         # these, without the page; exit status 1 where one has a fault

A row is a tiny random model of `burnish tiny`, compared with the class's own
forward, trained by GRPO with adapters and by PPO with all weights, exported, and loaded by transformers and peft alone.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from class_table import ClassTable, figure, lines_of
from language_row import Row, measure

from burnish.models.tiny import LANGUAGE, describe

TITLES: dict[str, Callable[[Row], bool]] = {
    "Models that see": lambda row: "image" in row.reads and "audio" not in row.reads,
    "Models that hear": lambda row: "audio" in row.reads,
    "Models that read": lambda row: not row.reads,
}


def measured(name: str, folder: Path) -> Row:
    """A row of a tiny model."""
    return measure(describe(name, LANGUAGE), folder)


def failed(name: str, why: str) -> Row:
    """A row of a model that could not be measured."""
    tiny = describe(name, LANGUAGE)
    return Row(tiny.name, tiny.kind, list(tiny.places), faults=[why])


def told(row: Row) -> str:
    """A row as a line of progress."""
    said = (
        row.refused
        or f"rows {row.rows} decoding {row.decoding} batch {figure(row.batch)} sampler {figure(row.sampler)}"
    )
    return f"{row.name} {row.model}: {said}"


def page(rows: Sequence[Row]) -> str:
    """The text of the page."""
    import transformers

    trained = [row for row in rows if row.good]
    parts = [HEAD.format(classes=len({row.model for row in trained}), version=transformers.__version__)]
    for title, belongs in TITLES.items():
        if some := [row for row in trained if belongs(row)]:
            parts.append(f"## {title}\n\n{table(some)}\n")
    if others := [row for row in rows if not row.good]:
        lines = [[row.model, row.name, row.refused or "; ".join(row.faults)] for row in others]
        parts.append(f"{REFUSED}\n{lines_of([['class', 'model', 'reason'], *lines])}\n")
    parts.append(OTHERS)
    for reason, names in groups({row.model for row in rows}).items():
        parts.append(f"- **{reason}** ({len(names)}): {', '.join(names)}.")
    return "\n".join(parts).rstrip() + "\n"


def groups(measured: Collection[str]) -> dict[str, list[str]]:
    """Classes that transformers has for writing text, but for those that were measured, by the reason."""
    from transformers.models.auto import configuration_auto, modeling_auto

    named: defaultdict[str, list[str]] = defaultdict(list)
    for task in ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ"):
        for model, kind in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").items():
            if kind not in measured and not any(kind in known for known in named.values()):
                two_parts = getattr(configuration_auto.CONFIG_MAPPING[model], "is_encoder_decoder", False) is True
                why = next((why for pattern, why in CANNOT if re.search(pattern, kind)), UNKNOWN)
                named[TWO_PARTS if two_parts and "CausalLM" not in kind else why].append(kind)
    order = [TWO_PARTS, *(why for _, why in CANNOT), UNKNOWN]
    return {why: sorted(named[why]) for why in dict.fromkeys(order) if named[why]}


def table(rows: Sequence[Row]) -> str:
    """Rows, sorted by their classes."""
    head = "class | model | reads | rows | decoding | batch | sampler | greedy | shared | gradients | turns | bf16 | "
    head += "updates | adapter | weights"
    lines = [head.split(" | ")]
    for row in sorted(rows, key=lambda one: one.model):
        name = row.model.removesuffix("ForConditionalGeneration").removesuffix("ForCausalLM")
        figures = (figure(getattr(row, one)) for one in ("shared", "gradients", "turns", "half"))
        lines.append([
            name, row.name, ", ".join(row.reads), row.rows, row.decoding, figure(row.batch), figure(row.sampler),
            row.greedy, *figures, f"{row.grpo} + {row.ppo}", figure(row.adapter),
            figure(row.weights),
        ])  # fmt: skip
    return lines_of(lines)


HEAD = """# Which language models can be trained

Burnish trains any decoder that transformers loads, without code for it: tokens and pixels come from the model's own
processor, and its class's own forward runs ([models](models.md)). This page says what that gave for **{classes}
classes** of transformers {version}, with tiny random weights on a CPU, in float32 but where it says bf16.
`python tools/language_table.py` measures all of it again and writes this page.

Prompts with none, one and three images of odd sizes, with a video and with sound are mixed in one batch, as far as a
class reads them. Differences are the largest in nats, beside the class's own forward of each response alone; 1e-6 is
rounding.

- **rows**: how the checks on load found that rows are trained; they compute in float32, whatever `model.dtype` is.
  *packed*: one after the other, responses behind the prompt that they share, under Burnish's own plan of attention.
  *padded*: in batches. *alone*: one row a forward.
- **decoding**: *own*: by Burnish's decoder. *class*: with the class's own cache. *no cache*: its cache gives other
  numbers, so that each token is computed with all before it.
- **batch**: the trainer's log-probs in padded batches. **sampler**: those that sampling reports, at temperature 0.8.
- **greedy**: tokens of greedy responses that transformers' `generate` writes too.
- **shared, gradients**: log-probs of responses that share their prompt, and gradients relative to the largest.
- **turns**: the sampler's, after a second turn that shows another image, where such a turn can follow.
- **bf16**: sampler against trainer in bfloat16, on average over tokens; 0.1 is tolerated.
- **updates**: of GRPO with adapters and of PPO with all weights whose gradients are finite and not 0.
- **adapter, weights**: log-probs of what was trained by them, exported, and loaded by peft and by transformers alone.
"""
REFUSED = """## Refused, or at fault
"""

OTHERS = """## Not measured

What is known of the other classes, by their names in transformers. The checks on load decide where nothing is said
against them.
"""
TWO_PARTS = "an encoder with a decoder, which is refused: Burnish trains decoders"
UNKNOWN = "nothing is known against them, but they are not measured yet; the checks on load decide"
# patterns of names, and why there is no row; the first counts
CANNOT = (
    ("Assistant", "they draft for another model, whose states they read"),
    ("BlockDiffusion", "tokens are denoised by blocks, not written one after the other"),
    ("Protein|^PI0", "proteins, or a robot's actions, beside text"),
    ("^VibeVoiceAsr", "refused: each forward adds other noise to sounds, so that log-probs are not the same twice"),
    ("^Moshi|^Musicgen|^Dia|^Kyutai|^VibeVoiceFor|^Pop2|^Csm", "they write sounds"),
    ("^(Seamless|SpeechT5|SpeechEncoder|VisionEncoder|EncoderDecoder|Whisper|Udop|Florence)", TWO_PARTS),
    ("^Qwen(2_5|3)Omni(Moe)?ForCond", "a thinker with a talker; the thinker, which is what is trained, has a row"),
    ("^(XLMWith|XLNet|CpmAnt|ProphetNet)", "refused, as their tokens read those that come after them"),
    ("^Reformer", "its layers learn in training mode alone, where they hash at random"),
    (
        "^(Camembert|Data2Vec|Roberta|XLMRoberta|Xmod)",
        "refused: their forward counts positions from `padding_idx` + 1, and what generates from 0",
    ),
    (
        "^(BertGen|BigBirdFor|Electra|ErnieFor|MegatronBert|RemBert|RoCBert|RoFormer)",
        "encoders, which are decoders with `is_decoder` in config.json, as Bert above; tried so, they train",
    ),
    (
        "^(Bart|Blenderbot|Marian|MBart|Mvp|Pegasus|PLBart|TrOCR|BigBirdPeg)",
        "the decoder alone of a model of two parts; tried so, they train",
    ),
    ("^(DeepseekOcr2|UnlimitedOcr)", "their towers take images of 768 and 1,024 pixels a side alone"),
    ("^(Mllama|Emu3)ForCausalLM", "the decoder of a class that has a row, as which its folder is loaded"),
    (
        "^(FastVlm|PerceptionLM|Gemma3nForCond)",
        "transformers needs timm for their towers, which Burnish doesn't install",
    ),
    ("^GraniteSpeech", "transformers needs torchaudio for their sounds, which Burnish doesn't install"),
    ("^Fuyu", "without torchvision its processor fails on images; text alone trains"),
    ("^Dbrx", "in float32 only: in bfloat16 its experts add two precisions, which fails in transformers"),
    ("^(Blip|InstructBlip|Git|Kosmos|Pix2Struct)", "they take no prompt without an image, or one beside the text"),
    ("^(Qwen3ASR|GotOcr2|MossTrans|FunAsr|Nemotron3_5|Voxtral)", "every prompt needs a sound or an image of its own"),
)

TABLE = ClassTable(
    about=__doc__,
    names=[tiny.name for tiny in LANGUAGE],
    describe=describe,
    row=Row,
    measure=measured,
    failed=failed,
    told=told,
    page=page,
    trained=lambda rows: sum(row.good for row in rows),
    file="language_models.md",
    work="build/language_models",
)

if __name__ == "__main__":
    raise SystemExit(TABLE.main())
