"""Generators from directories: checks of model_index.json, of the classes that it names and of what text encoders read
of prompts, and loading."""

from __future__ import annotations

import inspect
import logging
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from heapq import nlargest
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.diffusion.options import ModelOptions, RolloutOptions
from burnish.models.loading import placement_of, read_folder
from burnish.models.placing import rest_frozen
from burnish.models.quantization import quantize
from burnish.registry import entries, lookup
from burnish.utils.errors import UserError
from burnish.utils.hub import MODULAR, PIPELINE, index_in, part_of
from burnish.utils.json_text import read_object
from burnish.utils.paths import resolve
from burnish.utils.reading import understood
from burnish.utils.weights import complaints_about, quietly, without_weights

if TYPE_CHECKING:
    from torch import nn

    from burnish.diffusion.pipeline.base import FlowModel
    from burnish.types.prompt import Prompt


log = logging.getLogger(__name__)

STANDARD_SIDE = 128  # latent positions per side if a transformer's configuration names none, as FLUX's pipeline
LIBRARIES = ("diffusers", "transformers")  # whose classes a pipeline may use
NAMES = re.compile(r"(?<![a-z])(turbo|schnell|lightning|lcm|distilled|few[-_]?steps?|dmd2?|sprint)(?![a-z])", re.I)
FEW_STEP_SCHEDULERS = ("LCMScheduler", "FlowMatchLCMScheduler", "SCMScheduler", "TCDScheduler")
FEW_STEP_PIPELINES = re.compile(
    r"SanaSprint\w*Pipeline|LatentConsistencyModel\w*Pipeline|\w+(Turbo|Distilled)ModularPipeline"
)
FEW = 9  # most denoising steps of a model that was distilled to few
CODE = "modular_config.json"  # of a modular pipeline: names its blocks' code
PARTS = ("transformer", "unet", "scheduler")
TOKENS = "max_sequence_length"  # of prompts that are read
LENGTH = f"_{TOKENS}"  # in model_index.json: what rollout.max_sequence_length is where nothing is said


def read_index(options: ModelOptions) -> tuple[Path, dict[str, Any]]:
    """The directory of a model and its model_index.json.

    Raises:
        UserError: there is no such directory, or it is not a pipeline in diffusers layout.
    """
    path, content = read_folder(options, PIPELINE, "diffusers", "pipeline")
    content = {name: part_of(entry) for name, entry in content.items()}
    index = index_in(path, PIPELINE)
    if (path / CODE).exists() and index.name == MODULAR:
        raise UserError(
            f"model.path is {options.path}, whose blocks are code beside it ({CODE}), and Burnish runs no code of a "
            "model's folder; give a pipeline whose blocks are diffusers' own"
        )
    named = _listed(content)
    if malformed := [name for name, kind in named.items() if len(kind) != 2]:
        raise UserError(f"{index} has {named[malformed[0]]!r:.80} for {malformed[0]}; it must be a library and a class")
    parts = parts_of(content)
    if isinstance(code := content.get("_class_name"), list) and code:
        raise UserError(
            f"{index} has {code!r:.80} as _class_name, which is code beside it, and Burnish runs no code of a model's "
            f"folder; if you trust it, write {code[-1]!r} there, and give a copy as model.family=FILE.py:{code[-1]}"
        )
    # diffusers would import any module that is named here
    own = None if options.family == "auto" else getattr(family_of(options, content), "own", None)
    known = [*LIBRARIES, *_own_folders(), own and own.__module__.partition(".")[0]]
    if strange := [name for name in parts if content[name][0] not in known]:
        raise UserError(
            f"{index} takes {strange[0]} from {content[strange[0]][0]!r:.80}; parts must be of "
            f"{', '.join(LIBRARIES)} or a package of yours that model.family=package.module:Class names"
        )
    if strange := [name for name in parts if not re.fullmatch(r"\w+", name)]:
        raise UserError(f"{index} lists {strange[0]!r:.80}, which is not a valid name of a part; restore the file")
    absent = [name for name in parts if not (path / name).is_dir()]
    if absent:
        way = "write it anew with diffusers (load_components, then save_pretrained)"  # its index may name other models
        raise UserError(
            f"model.path is {options.path}, which lacks {', '.join(absent)} ({index.name}); "
            f"{way if index.name == MODULAR else 'download the model again'}"
        )
    return path, content


@cache
def _own_folders() -> set[str]:
    """Folders of diffusers' pipelines: model_index.json names them for classes that belong to one pipeline alone."""
    found = find_spec("diffusers")
    origin = Path(found.origin).parent if found is not None and found.origin is not None else Path()
    return {path.parent.name for path in origin.glob("pipelines/*/__init__.py")}


def parts_of(index: Mapping[str, Any]) -> list[str]:
    """The parts that a pipeline has, by its model_index.json."""
    return [name for name, kind in _listed(index).items() if kind[0] is not None]


def _listed(index: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The entries of a model_index.json for parts, absent ones included."""
    return {
        name: kind for name, kind in index.items()
        if isinstance(kind, list) and not name.startswith("_") and not all(isinstance(one, int | float) for one in kind)
    }  # fmt: skip


def with_length(index: dict[str, Any], rollout: RolloutOptions) -> RolloutOptions:
    """The options of a rollout, with the number of prompt tokens that the model's own model_index.json states.

    Raises:
        UserError: it is no number.
    """
    stated = index.get(LENGTH)
    if stated is None or rollout.max_sequence_length is not None:
        return rollout
    if type(stated) is not int or stated < 0:
        raise UserError(f"model_index.json has {LENGTH} {stated!r:.80}; it must be a number of tokens")
    return replace(rollout, max_sequence_length=stated)


def standard_side(path: Path) -> int:
    """The side in pixels of a pipeline's default image, by its configurations."""
    return int(config_of(path, "transformer").get("sample_size") or STANDARD_SIDE) * vae_factor(path)


def vae_factor(path: Path) -> int:
    """Pixels of a side that a pipeline's VAE makes one latent of, by its configuration; 1 where that is unknown."""
    return int(2 ** (len(config_of(path, "vae").get("block_out_channels", [0])) - 1))


def config_of(pipeline: Path, part: str) -> dict[str, Any]:
    """The configuration of a part of a pipeline; {} if there is none."""
    file = pipeline / part / ("scheduler_config.json" if part == "scheduler" else "config.json")
    return read_object(file) if file.is_file() else {}


def sign_of_few_steps(folder: Path, index: Mapping[str, Any], name: str) -> str:
    """Why a pipeline seems to be distilled to draw in a few steps; "" where it doesn't.

    What teaches a velocity at many noise levels takes such a model apart: it blurs, or returns to what many steps draw.

    Args:
        folder: of the pipeline.
        index: its model_index.json.
        name: by which the user calls it; a name such as Z-Image-Turbo is all that tells it from its base.
    """
    kind, (transformer, unet, scheduler) = str(index.get("_class_name")), (config_of(folder, part) for part in PARTS)
    # v-prediction down to pure noise is spaced so, too
    trailing = scheduler.get("timestep_spacing") == "trailing" and scheduler.get("prediction_type") in (None, "epsilon")
    signs = {
        "is_distilled is true in model_index.json, as with FLUX.2-klein, Krea2-Turbo": index.get("is_distilled"),
        "its transformer has no guidance input (guidance_embeds is false), as with FLUX.1-schnell":
            kind in ("FluxPipeline", "FluxModularPipeline") and transformer.get("guidance_embeds") is False,
        "its pipeline's class draws in a few steps, as with SANA-Sprint": FEW_STEP_PIPELINES.fullmatch(kind),
        "its scheduler is one for a few steps, as with LCM, TCD": scheduler.get("_class_name") in FEW_STEP_SCHEDULERS,
        "its scheduler spaces steps from the end (timestep_spacing is trailing), as with SDXL-Turbo":
            trailing and re.fullmatch(r"StableDiffusion(XL)?\w*Pipeline", kind),
    }  # fmt: skip
    called = [name, *(str(part.get("_name_or_path", "")) for part in (index, transformer, unet, scheduler))]
    found = [words for words, there in signs.items() if there] + [sign for one in called if (sign := sign_of_name(one))]
    return next(iter(found), "")


def sign_of_name(path: str) -> str:
    """What the last part of a path, or of a name of the hub, says about a few-step model or adapter; "" if nothing."""
    found = NAMES.search(called := Path(path).name)
    return f"{called} has {found.group()!r} in its name" if found else ""


def family_of(options: ModelOptions, index: dict[str, Any]) -> Any:
    """What reads a pipeline: a plugin's family for its class, or what reads any."""
    if options.family != "auto":
        return lookup("flow model", options.family)
    # of two that read the same pipelines, a plugin's is taken only where it is named
    families = {family.pipeline_class: family for family in reversed(entries("flow model"))}
    return families.get(str(index.get("_class_name"))) or lookup("flow model", "pipeline")


def check_parts(options: ModelOptions, rollout: RolloutOptions, prompts: Sequence[Prompt]) -> None:
    """Refuse networks that can't be trained, and tell of prompts that text encoders wouldn't read in full, before any
    weight is loaded.

    Raises:
        UserError: naming the network, or the first prompt where the family refuses such.
    """
    from burnish.diffusion.pipeline.arguments import Arguments
    from burnish.diffusion.pipeline.loaded import LoadedPipeline
    from burnish.diffusion.pipeline.networks import denoisers
    from burnish.types.prompt import texts_of

    path, index = read_index(options)
    family = family_of(options, index)
    if not issubclass(family, LoadedPipeline):  # one that is no pipeline has its own way
        return
    if options.networks is not None:
        denoisers(classes_of(index), options.networks)
    kind, tokenizers = Arguments.of_index(index, rollout, family.own).kind, tokenizers_of(path, index)
    for encoder, size in vocabularies_of(path, index).items():
        if tokenizer := tokenizers.get(encoder.replace("text_encoder", "tokenizer")):
            refuse_unknown(tokenizer, texts_of(prompts), encoder, size)
    length = with_length(index, rollout).max_sequence_length
    if warning := truncated(kind, tokenizers.values(), length, texts_of(prompts)):
        log.warning(warning)


LOOKED_AT = 10_000  # texts that are tokenised: a million would take minutes


def tokenizers_of(path: Path, index: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizers of a pipeline by the names of its parts, and those of its processors; nothing else is loaded.

    Args:
        path: folder of the pipeline.
        index: its model_index.json.

    Raises:
        UserError: one can't be loaded.
    """
    import transformers

    found: dict[str, Any] = {}
    for name in parts_of(index):
        library, named = index[name]
        settings = path / name / "tokenizer_config.json"
        if library != "transformers" or not settings.is_file():
            continue
        read_object(settings)  # or its library would fail without naming it
        # processors have classes of their own, which need what reads images
        own = str(named) if "Tokenizer" in str(named) else "AutoTokenizer"
        kind = getattr(transformers, own, transformers.AutoTokenizer)
        with quietly(), understood(f"model.path is {path}, whose {name} can't be loaded"):
            found[name] = kind.from_pretrained(path / name, local_files_only=True)
    return found


def vocabularies_of(path: Path, index: Mapping[str, Any]) -> dict[str, int]:
    """How many tokens each text encoder of a pipeline knows, where its config.json says so; no weight is read."""
    sizes = {name: config_of(path, name).get("vocab_size") for name in parts_of(index) if "text_encoder" in name}
    return {name: size for name, size in sizes.items() if isinstance(size, int)}


def longer(tokenizer: Any, texts: Iterable[str], limit: int) -> dict[str, int]:
    """The texts of more than ``limit`` tokens, and how many each has; only the longest texts are tokenised."""
    spare = limit - tokenizer.num_special_tokens_to_add()  # a token has a byte at least
    sizes = {text: size for text in texts if (size := len(text.encode())) >= spare}
    longest = nlargest(LOOKED_AT, sizes, key=sizes.__getitem__)
    return {text: len(ids) for text, ids in _tokenised(tokenizer, longest) if len(ids) > limit}


def _tokenised(tokenizer: Any, texts: list[str]) -> Iterable[tuple[str, list[int]]]:
    """The texts with their token ids."""
    with quietly():  # what is too long is told by its caller, in the run's own terms
        return zip(texts, tokenizer(texts).input_ids if texts else [], strict=True)


def refuse_unknown(tokenizer: Any, texts: Iterable[str], encoder: str, size: int) -> None:
    """Refuse a tokenizer of another model: one that gives ids beyond the vocabulary of its text encoder.

    Raises:
        UserError: with the first such text.
    """
    if max(tokenizer.get_vocab().values()) < size:
        return
    for text, ids in _tokenised(tokenizer, list(texts)):
        if (token := max(ids, default=0)) >= size:
            raise UserError(
                f"prompt {text!r:.60} has token id {token}, but {encoder} has only {size}: the tokenizer belongs to "
                "another model; download the model again"
            )


def truncated(kind: type, tokenizers: Iterable[Any], length: int | None, texts: Iterable[str]) -> str:
    """What is said of texts that every text encoder truncates; nothing where each is read by one of them.

    Args:
        kind: class of the pipeline.
        tokenizers: its own. Those of several encoders read the same text: CLIP's sees the beginning alone.
        length: rollout.max_sequence_length, or None for the pipeline's own.
        texts: of prompts.
    """
    taken = inspect.signature(inspect.unwrap(kind.__call__)).parameters
    usual = taken[TOKENS].default if TOKENS in taken else None
    asked = usual if length is None else length
    limits = sorted(((min(one.model_max_length, asked or one.model_max_length), one) for one in tokenizers),
                    key=lambda pair: pair[0], reverse=True)  # fmt: skip
    if not limits:
        return ""
    limit, widest = limits[0]
    over = longer(widest, texts, limit)
    for other, tokenizer in limits[1:]:
        over = {text: over[text] for text in longer(tokenizer, over, other)}
    if not over:
        return ""
    count, text = max((count, text) for text, count in over.items())
    return (
        f"{len(over)} prompt{'s have' if len(over) > 1 else ' has'} more tokens than a {kind.__name__} reads, which "
        f"leaves out the end: {text!r:.60} has {count}, of which it reads {limit}; shorten them"
        f"{f', or set rollout.{TOKENS} higher' if TOKENS in taken else ''}"
    )


def load_model(
    options: ModelOptions,
    rollout: RolloutOptions | None = None,
    *,
    given: Mapping[str, nn.Module] | None = None,
    shared: bool = False,
    frozen: bool = False,
    only_samples: bool = False,
) -> FlowModel:
    """Load the model that ``options`` describe, frozen and in evaluation mode.

    Args:
        options: which model, and in what precision.
        rollout: how it draws; None takes all defaults.
        given: frozen parts of another model that this one uses too, by their names.
        shared: ranks will hold what is trained together; until it is sharded, it is not read.
        frozen: nothing of it is ever trained, so that all weights rest in ``options.dtype``.
        only_samples: what is trained elsewhere rests in that precision where that moves no bit.

    Raises:
        UserError: it can't be loaded, or doesn't support an option.
    """
    path, index = read_index(options)
    device, stored, compute = placement_of(options, frozen=frozen)
    rollout = with_length(index, RolloutOptions() if rollout is None else rollout)
    family = family_of(options, index)
    family.check_options(path, index, rollout)
    where = f"model.path is {options.path}"
    try:
        with understood(f"{where}, which can't be loaded as a {index.get('_class_name')}"):
            model: FlowModel = family.load(
                path, index, options, rollout, dtype=stored, compute=compute, device=device, given=given or {}
            )
            if only_samples and options.lora is None:
                rest_frozen(model.network, compute)
            if not shared:
                if (fewer := options.quantization) is not None and fewer.weights is not None:
                    model.refuse_non_finite()
                    with quietly():
                        quantize(
                            model.network,
                            fewer.weights,
                            compute=model.compute,
                            device=model.device,
                            exclude=fewer.exclude,
                        )
                model.place()
    except UserError as error:
        raise UserError(str(error) if str(error).startswith(where) else f"{where}: {error}") from error
    if options.gradient_checkpointing and not frozen:
        model.recompute_activations(options.gradient_checkpointing)
    return model


def load_outline(options: ModelOptions, rollout: RolloutOptions) -> FlowModel:
    """The model that ``options`` describe by its configuration files alone: names and shapes, no memory, no values.

    Raises:
        UserError: it can't be made; what is wrong with the files is said better where they are loaded.
    """
    from accelerate import init_empty_weights

    path, index = read_index(options)
    _, stored, compute = placement_of(options)
    # what is done to weights that have values
    plain = replace(options, quantization=None, attention="auto", offload=False, compile=False, vae_tiling=False)
    where = f"model.path is {options.path}"
    with understood(f"{where}, which can't be made without weights"), without_weights(), init_empty_weights():
        model: FlowModel = family_of(options, index).load(
            path, index, plain, with_length(index, rollout),
            dtype=stored, compute=compute, device="meta", given={},
        )  # fmt: skip
    return model


def classes_of(index: Mapping[str, Any], path: Path = Path()) -> dict[str, Any]:
    """The classes of a pipeline's parts as diffusers loads them, by the names of the parts.

    Args:
        index: its model_index.json, as ``read_index`` returns it.
        path: folder of the pipeline, for messages.

    Raises:
        UserError: one is none, or a pipeline: its parts would be read by diffusers, unseen.
    """
    import diffusers
    import transformers

    found: dict[str, Any] = {}
    for name, (library, named) in _listed(index).items():
        if library is None:
            continue
        where = f"{path / 'model_index.json'} has {named!r:.80} of {library} for {name}"
        own: Any = transformers if library == "transformers" else diffusers
        # what belongs to one pipeline lies in its folder
        homes = [getattr(diffusers.pipelines, library, None), sys.modules.get(library), own]
        kind = next(filter(None, (getattr(home, str(named), None) for home in homes)), None)
        if not isinstance(kind, type) or not hasattr(kind, "from_pretrained"):
            raise UserError(
                f"{where}, which version {own.__version__} doesn't have; restore the file, or upgrade {library}"
            )
        if issubclass(kind, diffusers.DiffusionPipeline):
            raise UserError(f"{where}, which is a pipeline itself; give a pipeline whose parts are networks")
        if kind.__name__.startswith("AutoModel"):  # which would look into the part's folder for what it is
            raise UserError(f"{where}, which may be any network; name its class, as {name}/config.json has it")
        found[name] = kind
    return found


SHAPES = ("in_channels", "joint_attention_dim", "pooled_projection_dim")  # of latents and of embeddings
IGNORED = ("_name_or_path", "transformers_version", "torch_dtype", "dtype")  # keys of a configuration


def check_teacher(student: ModelOptions, path: str | None, lora: str | None, option: str) -> None:
    """Refuse a teacher that can't read the student's latents and embeddings.

    Args:
        student: the model that is trained.
        path: directory of the teacher's pipeline; None is the student's.
        lora: directory of an adapter for it, or None.
        option: the teacher's option in the configuration.

    Raises:
        UserError: its family, latents, embeddings or text encoders differ, or the adapter is missing.
    """
    if lora is not None and not list(resolve(lora).glob("*.safetensors")):
        raise UserError(f"{option}.lora is {lora}, which is not a directory with an adapter (.safetensors) in it")
    if path is None:
        return
    try:
        theirs, their_index = read_index(replace(student, path=path))
    except UserError as error:
        raise UserError(str(error).replace("model.", f"{option}.")) from None
    ours, our_index = read_index(student)
    cut = [
        one for part in ("transformer", "vae") if (theirs / part).is_dir() for one in complaints_about(theirs / part)
    ]
    if cut:
        raise UserError(f"{option}.path is {path}: {'; '.join(cut)}")
    encoders = {name for name in (*parts_of(their_index), *parts_of(our_index)) if name.startswith("text_encoder")}
    facts = [
        {"class": index.get("_class_name")}
        | {name: config_of(where, "transformer").get(name) for name in SHAPES}
        | {part: {k: v for k, v in config_of(where, part).items() if k not in IGNORED} for part in sorted(encoders)}
        for where, index in ((theirs, their_index), (ours, our_index))
    ]
    if differing := [name for name, value in facts[0].items() if facts[1][name] != value]:
        raise UserError(
            f"{option}.path is {path}, whose {differing[0]} differs from that of model.path; a teacher must be of the "
            "same class, and read the student's latents and embeddings"
        )


def load_teacher(
    options: ModelOptions,
    student: FlowModel,
    path: str | None,
    lora: str | None,
    rollout: RolloutOptions | None = None,
) -> FlowModel:
    """A frozen model in the student's precision, with the student's text encoders and an optional adapter merged."""
    from burnish.diffusion.pipeline.loaded import LoadedPipeline

    options = replace(options, quantization=None, path=path or options.path)
    given = student.text_encoders if isinstance(student, LoadedPipeline) else {}
    try:
        model = load_model(options, rollout, given=given, frozen=True)
    except UserError as error:
        raise UserError(str(error).replace("model.path is", "algorithm.teachers has")) from error
    if lora is not None:
        model.fold_lora(resolve(lora))
    return model
