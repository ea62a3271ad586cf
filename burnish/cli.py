"""The command line. Heavy imports are delayed until a command line is checked."""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn

from burnish import __version__
from burnish.commands import arguments as lines
from burnish.commands import sharing_arguments as sharing
from burnish.hooks.stop import EXIT_INTERRUPTED, EXIT_STOPPED, StopRequest, end_with_parent, ignore_further_signals
from burnish.utils.errors import Cancelled, UserError, out_of_memory
from burnish.utils.terminal import console, loading_pytorch, message, prepare, progress

EXIT_CODES = """\
exit codes:
  0    done
  1    failed, with a traceback; or doctor found a problem
  2    refused: a message says what is wrong with the command, the recipe or the files
  75   stopped by Ctrl-C, SIGTERM, SIGHUP or before the machine is reclaimed, with everything saved: run the same
       command again to resume
  130  interrupted by Ctrl-C; train needs a second one for this, and then says which updates were not saved
"""

LESS_MEMORY = (
    "lower rollout.batch_size, trainer.micro_batch_size or trainer.micro_batch_tokens, which change no result; set "
    "model.gradient_checkpointing=true; or use fewer or smaller samples"
)


@dataclass(frozen=True)
class Verb:
    """A command."""

    summary: str
    examples: str
    arguments: Callable[[argparse.ArgumentParser], None]
    act: Callable[[argparse.Namespace], int]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        dashed = re.match(r"unrecognized arguments: --([a-z][\w.-]*)(?:[= ](\S+))?", message)
        hint = ""
        if dashed and any(action.dest == "overrides" for action in self._actions):
            hint = f"; an option of the run is given without dashes, as {dashed[1]}={dashed[2] or 'VALUE'}"
        raise UserError(f"{message}{hint}; '{self.prog} --help' shows examples")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        prepare()
        code = _run(arguments)
        sys.stdout.flush()
    except UserError as error:
        _complain(error)
        code = 2
    except Exception as error:
        code = _system_error(error)
    except KeyboardInterrupt as error:
        _complain(UserError(str(error) or "interrupted"))
        code = EXIT_INTERRUPTED
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of Rust: no Exception, and its class has no public name
            raise
        _complain(UserError(f"a tokenizer gave up ({error}); one of its files is damaged: fetch the model again"))
        code = 2
    if argv is None:
        ignore_further_signals()  # a signal while Python exits would change the exit code
    return code


def _system_error(error: Exception) -> int:
    """Print a message for lack of memory or disk space, and return the exit code.

    Raises:
        Exception: the same, if it is another error.
    """
    if out_of_memory(error):
        reason = str(error).strip().split("\n")[0]
        _complain(UserError(f"out of memory{f': {reason}' if reason else ''}; {LESS_MEMORY}"))
        return 2
    if isinstance(error, BrokenPipeError):  # the reader of our output has exited, as `head` does
        _drop_output()
        return 1
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        raise error
    _drop_output()
    what = error.filename or "a file"
    _complain(UserError(f"{what} can't be written: {error.strerror}; free some space on its disk, or write elsewhere"))
    return 2


def _drop_output() -> None:
    """Redirect stdout to /dev/null, since Python flushes it at exit, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        _top_parser().parse_args(arguments)
        print(_top_parser().format_help(), end="")
        return 2
    name, *rest = arguments
    if name not in VERBS:
        near = difflib.get_close_matches(name, VERBS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(f"{name!r} is not a command; {hint}commands: {', '.join(VERBS)}")
    verb = VERBS[name]
    parser = _Parser(
        prog=f"burnish {name}",
        description=verb.summary,
        epilog=f"{verb.examples}\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    verb.arguments(parser)
    return verb.act(parser.parse_intermixed_args(rest))


def _top_parser() -> argparse.ArgumentParser:
    commands = "\n".join(f"  {name:<14}{verb.summary}" for name, verb in VERBS.items())
    parser = _Parser(
        prog="burnish",
        usage="burnish COMMAND ...",
        description="Reinforcement-learning post-training for models that draw and models that see.\n\n"
        f"commands:\n{commands}",
        epilog=f"start here:\n  burnish doctor\n  burnish train quickstart\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"burnish {__version__}")
    return parser


def _complain(error: UserError) -> None:
    from rich.text import Text

    text = Text.assemble(("burnish: error: ", "bold red"), message(error))
    console(stderr=True, highlight=False).print(text, soft_wrap=True)


def _quiet_threads(threads: int | None = None) -> None:
    """Configure OpenMP, before torch is imported."""
    # spinning threads slow down processes that share cores
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)


def _command(module: str, function: str | None = None, says: str = "") -> Callable[[argparse.Namespace], int]:
    """A function of ``burnish.commands``, imported when it is called with the parsed arguments as keywords.

    ``says`` is printed before: the import alone may take a second.
    """

    def act(args: argparse.Namespace) -> int:
        _quiet_threads()
        with progress(says.format(**vars(args))) if says else nullcontext():
            command = getattr(import_module(f"burnish.commands.{module}"), function or module)
        return int(command(**vars(args)))

    return act


def _plan(args: argparse.Namespace) -> int:
    _quiet_threads()
    with progress(f"Reading {args.recipe}"):
        from burnish.config import load
        from burnish.config.hardware import read_speed

        speed, overrides = read_speed(args.overrides)
        load(args.recipe, overrides).check_code()  # what is refused is refused before PyTorch is loaded
    with loading_pytorch():
        from burnish.commands.plan import plan
    return plan(args.recipe, overrides, speed)


def _train(args: argparse.Namespace) -> int:
    if args.sweep:
        with progress(f"Reading {args.recipe}"):
            from burnish.commands.sweep import sweep
        return sweep(args.recipe, args.overrides)
    sweep_of = os.environ.pop("BURNISH_SWEEP", None)
    if sweep_of is not None:
        end_with_parent(int(sweep_of))
    with StopRequest() as stop, stop.without_readers():
        try:
            with stop.cancellable():
                with progress(f"Reading {args.recipe}"):
                    from burnish.commands.fetching import fetched
                    from burnish.commands.hardware import check_hardware
                    from burnish.config import load
                    from burnish.config.disk import check_disk
                    from burnish.config.hub import fetch_data, with_models
                    from burnish.config.run_folder import check_place

                    config = load(args.recipe, args.overrides)
                    check_place(config)
                _quiet_threads(config.threads)
                check_hardware(config)
                config.check_code()
                config = with_models(fetched(config))
                fetch_data(config)
                with progress("Checking the model's files"):
                    check_disk(config)
                    from burnish.commands.train import train
        except Cancelled:
            print(f"Stopped by {stop.requested} before the run began; the same command starts again")
            return EXIT_STOPPED
        return train(config, stop)


def _sample(args: argparse.Namespace) -> int:
    if not args.prompts and args.prompt_file is None:
        raise UserError("no prompt is given; give prompts in quotes, or --prompt-file FILE")
    return _command("sample", says="Reading {source}")(args)


def _completion(args: argparse.Namespace) -> int:
    from burnish.commands.completion import completion

    return completion(args.shell, args.words, {name: verb.arguments for name, verb in VERBS.items()})


VERBS: dict[str, Verb] = {
    "train": Verb("Train a model with a recipe.", lines.TRAIN, lines.train, _train),
    "eval": Verb(
        "Evaluate a trained or untrained model.",
        lines.EVAL,
        lines.eval,
        _command("evaluate", says="Reading what to evaluate"),
    ),
    "sample": Verb("Sample images or responses from a trained model.", lines.SAMPLE, lines.sample, _sample),
    "export": Verb(
        "Export trained weights for other tools.", lines.EXPORT, lines.export, _command("export", says="Reading {run}")
    ),
    "push": Verb(
        "Send trained weights with a model card to the Hugging Face hub.",
        sharing.PUSH,
        sharing.push,
        _command("push", says="Reading {run}"),
    ),
    "report": Verb(
        "Write the report of a run.", lines.REPORT, lines.report, _command("show", "report", says="Reading {run}")
    ),
    "runs": Verb("List the runs in a folder.", lines.RUNS, lines.runs, _command("runs", says="Reading {folder}")),
    "compare": Verb(
        "Compare runs: measures and options.",
        lines.COMPARE,
        lines.compare,
        _command("runs", "compare", says="Reading the runs"),
    ),
    "board": Verb("Show the runs in a folder on a local page.", lines.BOARD, lines.board, _command("board")),
    "recipes": Verb(
        "List the recipes that ship with Burnish.",
        lines.RECIPES,
        lines.word,
        _command("show", "recipes", says="Reading the recipes"),
    ),
    "config": Verb(
        "Show every option of a run, explained.",
        lines.CONFIG,
        lines.recipe,
        _command("show", "config", says="Reading {recipe}"),
    ),
    "plan": Verb("Forecast the memory that a run will need.", lines.PLAN, lines.plan, _plan),
    "data": Verb(
        "List, prepare and look at data.",
        lines.DATA,
        lines.data,
        _command("data", says="Reading the list of data sets"),
    ),
    "pairs": Verb(
        "Make training data of the samples of a run.", lines.PAIRS, lines.pairs, _command("pairs", says="Reading {run}")
    ),
    "tiny": Verb(
        "Write a tiny random model to try recipes with.",
        lines.TINY,
        lines.tiny,
        _command("tiny", says="Reading the list of models"),
    ),
    "serve-reward": Verb(
        "Serve rewards to other machines.",
        lines.SERVE_REWARD,
        lines.serve_reward,
        _command("serve_reward", says="Loading the rewards"),
    ),
    "check-reward": Verb(
        "Try a reward on made pictures, and compare it.",
        lines.CHECK_REWARD,
        lines.check_reward,
        _command("check_reward", says="Loading {name}"),
    ),
    "completion": Verb("Complete commands in a shell.", sharing.COMPLETION, sharing.completion, _completion),
    "doctor": Verb("Check that this machine can train.", lines.DOCTOR, lines.none, _command("doctor")),
}


if __name__ == "__main__":
    sys.exit(main())
