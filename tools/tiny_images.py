"""Draw the images that supervised training on the quickstart imitates: train numbers, in the generator's fonts.

python tools/tiny_images.py burnish/assets/quickstart/pictures.jsonl
"""

from __future__ import annotations

import argparse
import base64
import io
import json
from pathlib import Path

from PIL import Image
from tiny_data import STYLES, prompt_of, render

from burnish.data.prompts import read_prompts
from burnish.utils.random import permutation

EACH = 2  # images of a number


def record(number: str, style: int) -> str:
    """A line: the prompt, and the image as PNG in base64."""
    pixels = ((render(number, STYLES[style])[0] + 1) * 127.5).round().byte().numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG", optimize=True)
    image = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    return json.dumps({"prompt": prompt_of(number), "image": image})


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    numbers = [str(prompt.answer) for prompt in read_prompts("burnish:quickstart/train.jsonl")]
    lines = [
        record(number, style)
        for number in numbers
        for style in permutation(len(STYLES), args.seed, "style", number)[:EACH]
    ]
    args.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} images, {args.output.stat().st_size / 1000:.0f} kB in {args.output}")


if __name__ == "__main__":
    main()
