"""The command line. Heavy imports are delayed until a command line is checked."""

from __future__ import annotations

import argparse
import difflib
import errno
import gc
import os
import sys
from collections.abc import Sequence

from burnish import __version__
from burnish.commands.verbs import VERBS, Parser
from burnish.hooks import EXIT_INTERRUPTED, ignore_further_signals
from burnish.utils.addresses import redacted
from burnish.utils.errors import UserError, meant, out_of_memory
from burnish.utils.terminal import console, message, prepare

EXIT_CODES = """\
exit codes:
  0    done
  1    failed, with a traceback; or doctor found a problem
  2    refused: the message says what is wrong
  75   stopped by a signal or before the machine is reclaimed, with everything
       saved: run the same command again to resume
  130  interrupted by Ctrl-C (train: by the second)
"""
LESS_MEMORY = (
    "lower rollout.batch_size, trainer.micro_batch_size or trainer.micro_batch_tokens, which change no result; set "
    "model.gradient_checkpointing=true; or use fewer or smaller samples"
)


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
        _complain(UserError(f"a tokenizer gave up ({error}); one of its files is damaged: download the model again"))
        code = 2
    if argv is None:
        ignore_further_signals()  # a signal while Python exits would change the exit code
        gc.freeze()  # of what ends with the process nothing is worth a second of looking for garbage
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
        _top_parser().parse_args(arguments or ["--help"])
    name, *rest = arguments
    if name not in VERBS:
        near = difflib.get_close_matches(name, VERBS, n=1)
        raise UserError(f"{name!r} is not a command; {meant([repr(one) for one in near])}commands: {', '.join(VERBS)}")
    return VERBS[name].act(VERBS[name].parser(name).parse_intermixed_args(rest))


def _top_parser() -> argparse.ArgumentParser:
    commands = "\n".join(f"  {name:<14}{verb.section('').splitlines()[0]}" for name, verb in VERBS.items())
    parser = Parser(
        prog="burnish",
        usage="burnish COMMAND ...",
        description="RL post-training for diffusion and flow generators and vision-language models.\n\n"
        f"commands:\n{commands}",
        epilog=f"start here:\n  burnish doctor\n  burnish train quickstart\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"burnish {__version__}")
    return parser


def _complain(error: UserError) -> None:
    from rich.text import Text

    text = Text.assemble(("burnish: error: ", "bold red"), redacted(message(error)))
    console(stderr=True, highlight=False).print(text, soft_wrap=True)
