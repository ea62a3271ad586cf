"""What the command lines of push and completion look like. Imports nothing else, for a quick --help."""

from __future__ import annotations

import argparse

SHELLS = ("bash", "zsh", "fish")

PUSH = """\
examples:
  burnish push runs/quickstart --to me/numbers --output numbers --dry-run    look at numbers/README.md first
  burnish push runs/quickstart --to me/numbers                               private, for you to make public
  burnish push runs/quickstart --to me/numbers --public --no-samples
  burnish push runs/quickstart/checkpoints/00000055 --to me/numbers          an earlier checkpoint

What is sent is what burnish export writes, with a model card made from the run. The token is huggingface_hub's own:
HF_TOKEN, or that of hf auth login.
"""

COMPLETION = """\
examples:
  source <(burnish completion bash)                          in ~/.bashrc
  source <(burnish completion zsh)                           in ~/.zshrc
  burnish completion fish > ~/.config/fish/completions/burnish.fish
"""


def push(parser: argparse.ArgumentParser) -> None:
    """Of ``burnish push``."""
    parser.add_argument("run", metavar="RUN", help="folder of a run, or of one of its checkpoints")
    parser.add_argument("--to", metavar="ORG/NAME", required=True, help="repository on the hub; made if there is none")
    parser.add_argument("--public", action="store_true", help="a new repository may be read by anyone (private)")
    parser.add_argument(
        "--format", dest="what", choices=("merged", "lora"),
        help="as in burnish export (lora where adapters were trained and their base is on the hub, else merged)",
    )  # fmt: skip
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), help="precision of merged weights (that of training)"
    )
    parser.add_argument("-o", "--output", metavar="DIR", help="new folder to write what is sent to, and keep")
    parser.add_argument("--dry-run", action="store_true", help="write the folder, say what would be sent, send nothing")
    parser.add_argument(
        "--no-samples", dest="samples", action="store_false", help="no prompts, pictures and answers in the model card"
    )


def completion(parser: argparse.ArgumentParser) -> None:
    """Of ``burnish completion``."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=f"one of {', '.join(SHELLS)}")
    parser.add_argument("words", metavar="WORD", nargs="*", help="what the script asks with: print what may come next")
