"""What command lines look like: examples and arguments of every command. Imports nothing else, for a quick --help."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

SOLVERS = ("euler", "heun", "dpm2m")  # rollout.solver; options are not imported for --help
SOURCE = "folder of a run or of one of its checkpoints, or a recipe for its untrained model"
OVERRIDES = "options of the run as section.option=value, with the value in YAML"

TRAIN = """\
examples:
  burnish train quickstart
  burnish train quickstart algorithm=flow_grpo output_dir=runs/flow_grpo
  burnish train my_recipe.yaml optimizer.lr=1e-4 rollout.n=16
  burnish train quickstart rewards.jpeg_compressibility.weight=0.1    adds a reward
  burnish train quickstart rewards.border_darkness=null               removes a reward
  burnish train quickstart model.lora=null                            trains all weights
  burnish train qwen25_vl/grpo gpus=8                                 the options that the recipe states for 8 GPUs
  burnish train quickstart --sweep seed=0,1,2 algorithm.beta=0.5,1 output_dir=runs/sweep

A killed run resumes when the same command is run again.
With --sweep, every combination of comma-separated values is trained, one after another, each in its own folder
below output_dir; lists need brackets: [a,b].
"""

EVAL = """\
examples:
  burnish eval runs/quickstart                        a run: its newest weights
  burnish eval runs/quickstart validation.n=16 --output judged
  burnish eval quickstart                             a recipe: the model before training
  burnish eval quickstart rollout.guidance_scale=3.0
  burnish eval runs/quickstart --suite quickstart --output judged      a suite, with intervals; goes on if killed
  burnish eval my_model+my_lora --suite geneval suite.scorers.geneval.path=detector --shard 1/2 --output half1
  burnish eval --merge half1 half2 --output judged
  burnish eval --compare before after                 two evaluations of a suite, paired by prompt
"""

SAMPLE = """\
examples:
  burnish sample runs/quickstart "the number 472"
  burnish sample runs/quickstart "the number 472" "the number 815" --count 8 --output pictures
  burnish sample runs/quickstart --prompt-file prompts.txt --steps 20 --guidance 3.0
  burnish sample path/to/model "a lighthouse" --height 512 --width 512 --seed 7
"""

EXPORT = """\
examples:
  burnish export runs/quickstart --output my_model                   a pipeline, for from_pretrained
  burnish export runs/quickstart --format lora --output my_lora      adapters, for load_lora_weights
"""

RUNS = """\
examples:
  burnish runs            state, best validation, when and how long, of every run below runs
  burnish runs elsewhere
"""

COMPARE = """\
examples:
  burnish compare runs/a runs/b         measures before and after, and the options that differ
"""

BOARD = """\
examples:
  burnish board
  burnish board runs --port 0
"""

REPORT = """\
examples:
  burnish report runs/quickstart      curves and pictures of a run as one HTML page in its folder
"""

RECIPES = """\
examples:
  burnish recipes
  burnish recipes qwen                                  those with this word in their name or description
  burnish config quickstart > mine.yaml && burnish train mine.yaml    start from one of them
"""

CONFIG = """\
examples:
  burnish config quickstart                             every option, explained; non-default values are marked
  burnish config quickstart algorithm=flow_grpo
  burnish config quickstart rollout.n=16 > mine.yaml    the output is a recipe: burnish train mine.yaml
  burnish config sd35/flow_grpo                         also lists files that are missing on this machine
"""

PLAN = """\
examples:
  burnish plan flux/flow_grpo memory=80GB                              does it fit? if not, which options would help?
  burnish plan flux/flow_grpo model.lora=null gpus=8 memory=80GB
  burnish plan my_recipe.yaml model.path=DIR                           DIR may hold configuration files alone

The run's own code loads, samples, annotates, learns and saves on tensors that have shapes and no values. For each pool
and phase it prints what a process holds at its peak: weights, gradients, optimizer, activations, caches, batch and
buffers on the GPU; host memory; and bytes that it receives of other ranks. 1 is returned where it does not fit.
For generators it also says how many seconds each phase of an update takes at least, and what bounds it.
"""

DOCTOR = """\
examples:
  burnish doctor      what to fix if the quickstart does not run
"""

DATA = """\
examples:
  burnish data list                                     sets that recipes and suites use
  burnish data prepare geneval                          writes data/geneval/train.jsonl and test.jsonl
  burnish data show prompts.csv                         the first records, as a run would read them
  burnish data show questions.jsonl --recipe vlm_quickstart data.prompt_key=ask
  burnish data show qwen25_vl/grpo                      the training data of a recipe
"""

TINY = """\
examples:
  burnish tiny --list                   every pipeline and every language model that can be made
  burnish tiny wan2.2 my_tiny_wan       real classes, random weights: to try a recipe on a CPU in seconds
  burnish tiny qwen3_vl my_tiny_qwen    language models by their model_type
  burnish tiny FluxPipeline my_tiny_flux --seed 1
"""

PAIRS = """\
examples:
  burnish train quickstart rollout.save.every=5 output_dir=runs/kept
  burnish pairs runs/kept --output preferences --margin 0.2
  burnish train quickstart algorithm=diffusion_dpo algorithm.online=false data.train_files=preferences/pairs.jsonl
  burnish pairs runs/kept --output best --form sft --at-least 0.9 --per-prompt 2
  burnish pairs runs/kept --output scored --form scores        for a reward model: algorithm=score_regression
"""

CHECK_REWARD = """\
examples:
  burnish check-reward pickscore                              weights from the hub
  burnish check-reward hpsv2 --weights HPS_v2.1_compressed.pt tokenizer=path/to/clip
  burnish check-reward clip --weights DIR device=cuda scale=x100

Scores pictures that it makes with several prompts: in a batch, alone, with gradients, and, of CLIP and SigLIP, by
transformers itself. 1 is returned where something is wrong.
"""

SERVE_REWARD = """\
examples:
  burnish serve-reward ocr --port 8000
  burnish serve-reward pickscore pickscore.device=cuda --port 8000
  burnish serve-reward numeric format format.weight=0.1                   their weighted sum
  burnish serve-reward my_recipe.yaml --host 10.0.0.5 --token-variable REWARD_TOKEN

A run asks it by the reward remote: rewards.remote.url=http://127.0.0.1:8000
"""


def recipe(parser: argparse.ArgumentParser) -> None:
    """A recipe, and options."""
    parser.add_argument("recipe", metavar="RECIPE", help="name of a recipe (burnish recipes) or path of a .yaml file")
    parser.add_argument("overrides", metavar="OPTION=VALUE", nargs="*", default=[], help=OVERRIDES)


def word(parser: argparse.ArgumentParser) -> None:
    """Of ``burnish recipes``."""
    parser.add_argument("word", metavar="WORD", nargs="?", default="", help="part of a name or description")


def plan(parser: argparse.ArgumentParser) -> None:
    """Of ``burnish plan``."""
    parser.add_argument("recipe", metavar="RECIPE", help="name of a recipe (burnish recipes) or path of a .yaml file")
    parser.add_argument(
        "overrides",
        metavar="OPTION=VALUE",
        nargs="*",
        default=[],
        help=f"{OVERRIDES}; gpus=8, nodes=2, memory=80GB of each GPU; tflops, bandwidth, launch of one",
    )


def train(parser: argparse.ArgumentParser) -> None:
    """Of ``burnish train``."""
    recipe(parser)
    parser.add_argument("--sweep", action="store_true", help="train every combination of comma-separated values")


def eval(parser: argparse.ArgumentParser) -> None:
    """Of ``burnish eval``."""
    parser.add_argument(
        "source", metavar="SOURCE", nargs="?",
        help=f"{SOURCE}; with --suite also MODEL or MODEL+LORA, folders or a model of the hub",
    )  # fmt: skip
    parser.add_argument(
        "overrides",
        metavar="OPTION=VALUE",
        nargs="*",
        default=[],
        help=f"{OVERRIDES}; suite.OPTION=VALUE changes the suite",
    )
    parser.add_argument("-o", "--output", metavar="DIR", help="also write metrics, samples and scores to this folder")
    parser.add_argument("--suite", metavar="NAME", help="a suite (--list), or the path of one in YAML")
    parser.add_argument("--shard", metavar="I/N", help="only part I of N of the suite, to be merged")
    parser.add_argument("--merge", dest="merged", metavar="DIR", nargs="+", help="put the shards of a suite together")
    parser.add_argument(
        "--compare", dest="compared", metavar=("BEFORE", "AFTER"), nargs=2, help="what changed between two evaluations"
    )
    parser.add_argument("--list", dest="list_all", action="store_true", help="list the suites")


def sample(parser: argparse.ArgumentParser) -> None:
    """Of ``burnish sample``."""
    parser.add_argument("source", metavar="SOURCE", help=f"{SOURCE}; or a diffusers model's directory")
    parser.add_argument("prompts", metavar="PROMPT", nargs="*", help="prompts, in quotes")
    parser.add_argument(
        "-i", "--image", dest="images", metavar="FILE", action="append", default=[],
        help="image that the prompts are about, or that samples begin from; burnish:PATH ships with Burnish; may be "
        "given several times",
    )  # fmt: skip
    for kind, what in (("video", "video"), ("audio", "sound")):
        parser.add_argument(
            f"--{kind}", dest=f"{kind}s", metavar="FILE", action="append", default=[],
            help=f"{what} that the prompts of a language model are about; may be given several times",
        )  # fmt: skip
    parser.add_argument("-p", "--prompt-file", metavar="FILE", help="more prompts: .txt, or others of data.train_files")
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        default="samples",
        help="folder for the samples; those of an earlier call are replaced (%(default)s)",
    )
    parser.add_argument(
        "-n",
        "--count",
        dest="n",
        type=_whole(1, 10_000),
        default=4,
        metavar="N",
        help="samples per prompt (%(default)s)",
    )
    parser.add_argument(
        "--steps", type=_whole(1, 1000), metavar="N", help="denoising steps (the run's, as it validates)"
    )
    parser.add_argument("--solver", choices=SOLVERS, help="solver of the steps (the run's)")
    parser.add_argument("--guidance", type=_guidance, metavar="SCALE", help="guidance scale, 1 is none (the run's)")
    parser.add_argument("--height", type=_whole(1, 2**15), metavar="PIXELS", help="image height (the model's default)")
    parser.add_argument("--width", type=_whole(1, 2**15), metavar="PIXELS", help="image width (the model's default)")
    parser.add_argument("--frames", type=_whole(1, 10_000), metavar="N", help="frames of a video (the model's default)")
    parser.add_argument(
        "--seed", type=_whole(0, 2**63 - 1), default=0, metavar="N", help="seed of the noise (%(default)s)"
    )


def export(parser: argparse.ArgumentParser) -> None:
    """Of ``burnish export``."""
    parser.add_argument("run", metavar="RUN", help="folder of a run")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="new folder to write")
    parser.add_argument(
        "--format", dest="what", choices=("merged", "lora"), default="merged",
        help="merged: the full model with the trained weights; lora: only the adapters (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"),
        help="precision of merged weights (that of training)",
    )  # fmt: skip


def report(parser: argparse.ArgumentParser) -> None:
    """Of ``burnish report``."""
    parser.add_argument("run", metavar="RUN", help="folder of a run")


def pairs(parser: argparse.ArgumentParser) -> None:
    """Of ``burnish pairs``."""
    parser.add_argument("run", metavar="RUN", help="folder of a run that kept samples (rollout.save.every=10)")
    parser.add_argument(
        "--form", choices=("pairs", "sft", "scores"), default="pairs",
        help="pairs: best and worst samples of a prompt; sft: the best, to imitate; scores: all, scored (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--validation", action="store_true", help="of samples of validations (validation.save.prompts=64)"
    )
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="new folder to write")
    parser.add_argument(
        "--by", metavar="NAME", default="reward", help="score that decides, or a component's (%(default)s)"
    )
    parser.add_argument(
        "--margin", type=_distance, default=0.0, metavar="X", help="least difference of a pair (above 0)"
    )
    parser.add_argument(
        "--per-prompt", dest="most", type=_whole(1, 10_000), metavar="N",
        help="records of a prompt and update at most (1, of scores all)",
    )  # fmt: skip
    parser.add_argument(
        "--at-least", dest="least", type=_number, metavar="X", help="sft: least score of a sample (any)"
    )


def tiny(parser: argparse.ArgumentParser) -> None:
    """Of ``burnish tiny``."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="a model such as wan2.2 or qwen3_vl, or a class")
    parser.add_argument("directory", metavar="DIR", nargs="?", help="new folder to write")
    parser.add_argument(
        "--seed", type=_whole(0, 2**63 - 1), default=0, metavar="N", help="seed of the weights (%(default)s)"
    )
    parser.add_argument("--force", action="store_true", help="replace a model that is there")
    parser.add_argument("--list", dest="list_all", action="store_true", help="list every name")


def check_reward(parser: argparse.ArgumentParser) -> None:
    """Of ``burnish check-reward``."""
    parser.add_argument("name", metavar="NAME", help="a reward on pictures, such as pickscore")
    parser.add_argument(
        "options", metavar="OPTION=VALUE", nargs="*", default=[], help="options of the reward, with values in YAML"
    )
    parser.add_argument("--weights", metavar="DIR", help="directory, file or name on the hub of its network")


def data(parser: argparse.ArgumentParser) -> None:
    """Of ``burnish data``."""
    parser.add_argument("action", metavar="list|prepare|show", choices=("list", "prepare", "show"), help="what to do")
    parser.add_argument(
        "source", metavar="NAME", nargs="?", help="a set; to be shown also a file, a hub id or a recipe"
    )
    parser.add_argument(
        "overrides", metavar="OPTION=VALUE", nargs="*", default=[], help="show: options of the section data"
    )
    parser.add_argument("-o", "--output", metavar="DIR", help="prepare: folder in which the set's is made (data)")
    parser.add_argument(
        "-n", "--limit", type=_whole(1, 10_000), default=3, metavar="N", help="show: number of records (%(default)s)"
    )
    parser.add_argument("--recipe", metavar="RECIPE", help="show: read a file as this recipe does (quickstart)")


def board(parser: argparse.ArgumentParser) -> None:
    """Of ``burnish board``."""
    parser.add_argument(
        "folder", metavar="FOLDER", nargs="?", default="runs", help="where runs are, or one of them (runs)"
    )
    parser.add_argument("--port", type=int, default=8010, help="of this machine; 0 takes a free one (%(default)s)")


def runs(parser: argparse.ArgumentParser) -> None:
    """Of ``burnish runs``."""
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default="runs", help="where runs are (runs)")


def compare(parser: argparse.ArgumentParser) -> None:
    """Of ``burnish compare``."""
    parser.add_argument("first", metavar="RUN", help="folder of a run")
    parser.add_argument("others", metavar="RUN", nargs="+", help="folders of others")


def none(parser: argparse.ArgumentParser) -> None:
    """None."""


def serve_reward(parser: argparse.ArgumentParser) -> None:
    """Of ``burnish serve-reward``."""
    parser.add_argument(
        "served", metavar="NAME|RECIPE|OPTION=VALUE", nargs="+",
        help="rewards by name, or a .yaml file with rewards, and options such as ocr.weight=1 or service.queue=100",
    )  # fmt: skip
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (%(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one (%(default)s)")
    parser.add_argument(
        "--token-variable", metavar="NAME", help="environment variable with the token clients must send"
    )
    parser.add_argument("--task", help="whose rewards the names are, where both tasks have some of that name")


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if len(text) > 20 or not text.lstrip("+-").isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"it is {text!r}, but must be a whole number >= {least} and <= {most}")
        return int(text)

    return read


def _guidance(text: str) -> float:
    try:
        scale = float(text)
    except ValueError:
        scale = 0.0
    if not 1 <= scale <= 1000:
        raise argparse.ArgumentTypeError(f"it is {text!r}, but must be a number >= 1 and <= 1000")
    return scale


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"it is {text!r}, but must be a number")
    return value


def _distance(text: str) -> float:
    try:
        margin = float(text)
    except ValueError:
        margin = -1.0
    if not 0 <= margin <= 1e12:
        raise argparse.ArgumentTypeError(f"it is {text!r}, but must be a number >= 0")
    return margin
