"""Command lines that nobody meant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.hostile.cases import Case, Expect, Place

LONG = "x" * 100_000
# with {drawing}, {seeing}: recipes; {run}, {answers}: finished runs; {model}: a pipeline; {place}: where all of it is
REFUSED: dict[str, list[str]] = {
    "no command of ours": ["trian"],
    "a command with control characters": ["\x1b[31mtrain"],
    "a command of another alphabet": ["обучить"],
    "an enormous command": [LONG],
    "an empty command": [""],
    "an unknown flag": ["--verbose"],
    "train nothing": ["train"],
    "a board of nothing": ["board", "no_such_folder"],
    "a board of an enormous name": ["board", LONG],
    "a board at no port": ["board", ".", "--port", "99999"],
    "serve nothing": ["serve-reward"],
    "serve an enormous name": ["serve-reward", LONG],
    "serve at no port": ["serve-reward", "ocr", "--port", "99999"],
    "serve everybody": ["serve-reward", "ocr", "--host", "192.0.2.1"],
    "serve a device": ["serve-reward", "/dev/null"],
    "serve with an option that is none": ["serve-reward", "ocr", "ocr.wight=1"],
    "train an empty name": ["train", ""],
    "train an enormous name": ["train", LONG],
    "train a folder": ["train", "."],
    "train a device": ["train", "/dev/null"],
    "train a recipe that is not there": ["train", "nothing.yaml"],
    "train with control characters": ["train", "\x1b]0;title\x07.yaml"],
    "train with a new line": ["train", "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\nl.yaml"],
    "train with half a character": ["train", "\udce4.yaml"],
    "an option without a value": ["train", "{drawing}", "steps="],
    "an option without a name": ["train", "{drawing}", "=3"],
    "an option without anything": ["train", "{drawing}", "="],
    "an option with dots": ["train", "{drawing}", "..=3"],
    "an option with control characters": ["train", "{drawing}", "ste\x1b[31mps=3"],
    "an option of another alphabet": ["train", "{drawing}", "шаги=3"],
    "an option with half a character": ["train", "{drawing}", "output_dir=\udce4"],
    "an enormous option": ["train", "{drawing}", f"{LONG}=3"],
    "an enormous value": ["train", "{drawing}", f"steps={LONG}"],
    "a deep option": ["train", "{drawing}", ".".join(["a"] * 3000) + "=3"],
    "a deep value": ["train", "{drawing}", "steps=" + "[" * 5000 + "]" * 5000],
    "an option below a number": ["train", "{drawing}", "steps.x=3"],
    "an option twice": ["train", "{drawing}", "steps=3", "steps=4"],
    "an option and its section": ["train", "{drawing}", "rollout=null", "rollout.n=3"],
    "a section that is a number": ["train", "{drawing}", "rollout=3"],
    "forty options that are not there": ["train", "{drawing}", *(f"option{i}={i}" for i in range(40))],
    "a YAML bomb": ["train", "{drawing}", "steps={a: &a [x,x,x,x,x,x,x,x], b: &b [*a,*a,*a,*a,*a,*a,*a,*a]}"],
    "an object of Python": ["train", "{drawing}", "steps=!!python/name:os.system"],
    "a model that is not there": ["train", "{drawing}", "model.path=nothing"],
    "a model with an enormous name": ["train", "{drawing}", f"model.path={LONG}"],
    "a model with a NUL": ["train", "{drawing}", 'model.path="a\\0b"'],
    "a model that is a device": ["train", "{drawing}", "model.path=/dev/zero"],
    "a model with control characters": ["train", "{drawing}", 'model.path="\\e[31m"'],
    "a home of nobody": ["train", "{drawing}", "model.path=~nobody-of-that-name/x"],
    "prompts that are a device": ["train", "{drawing}", "data.train_files=/dev/zero"],
    "prompts with a NUL": ["train", "{drawing}", 'data.train_files="a\\0b.txt"'],
    "prompts with an enormous name": ["train", "{drawing}", f"data.train_files={LONG}.txt"],
    "questions that are a list of nothing": ["train", "{seeing}", "data.train_files=[]"],
    "questions that are a device": ["train", "{seeing}", "data.train_files=[/dev/zero]"],
    "an enormous output": ["train", "{drawing}", f"output_dir={LONG}"],
    "an output with a NUL": ["train", "{drawing}", 'output_dir="a\\0b"'],
    "an output below a file": ["train", "{drawing}", "output_dir={place}/prompts.txt/x"],
    "an output that is a device": ["train", "{drawing}", "output_dir=/dev/null"],
    "an output in the kernel": ["train", "{drawing}", "output_dir=/proc/x"],
    "resuming from a file": ["train", "{drawing}", "resume={place}/prompts.txt"],
    "resuming from a folder": ["train", "{drawing}", "resume={place}"],
    "resuming from nothing": ["train", "{drawing}", "resume=nothing"],
    "resuming from a NUL": ["train", "{drawing}", 'resume="a\\0b"'],
    "resuming from another task": ["train", "{drawing}", "resume={answers}/checkpoints/00000002"],
    "resuming from an enormous name": ["train", "{drawing}", f"resume={LONG}"],
    "a reward of nobody": ["train", "{drawing}", "rewards.brightness.path=nothing:nobody"],
    "a reward without a colon": ["train", "{drawing}", "rewards.brightness.path=rewards.py"],
    "a reward with two dots": ["train", "{drawing}", "rewards.brightness.path=..x:y"],
    "a reward that is a NUL": ["train", "{drawing}", 'rewards.brightness.path="\\0:x"'],
    "a reward that is an enormous name": ["train", "{drawing}", f"rewards.brightness.path={LONG}.py:x"],
    "a reward in a folder": ["train", "{drawing}", "rewards.brightness.path={place}:x"],
    "a reward with arguments it has not": ["train", "{drawing}", "rewards.brightness.arguments={x: 1}"],
    "a sweep of nothing": ["train", "{drawing}", "--sweep"],
    "a sweep of one": ["train", "{drawing}", "--sweep", "seed=1"],
    "a sweep with a hole": ["train", "{drawing}", "--sweep", "seed=1,,2"],
    "a sweep of what is not there": ["train", "{drawing}", "--sweep", "sed=1,2"],
    "a sweep of folders": ["train", "{drawing}", "--sweep", "output_dir=a,b"],
    "a sweep with enormous values": ["train", "{drawing}", "--sweep", f"seed={LONG},{LONG}y"],
    "a sweep of a million": ["train", "{drawing}", "--sweep",
                             *(f"{o}={','.join(map(str, range(1, 101)))}" for o in ("seed", "steps", "rollout.n"))],
    "eval nothing": ["eval"],
    "eval a run that is not there": ["eval", "runs/nothing"],
    "eval a model": ["eval", "{model}"],
    "eval a file": ["eval", "{place}/prompts.txt"],
    "eval an empty folder": ["eval", "."],
    "eval with an option that nothing reads": ["eval", "{run}", "steps=100"],
    "eval with another that nothing reads": ["eval", "{run}", "optimizer.lr=1"],
    "eval with an unknown option": ["eval", "{run}", "validation.m=3"],
    "eval into a file": ["eval", "{run}", "-o", "{place}/prompts.txt"],
    "eval into a NUL": ["eval", "{run}", "-o", "/proc/x"],
    "eval with a suite that there is not": ["eval", "{run}", "--suite", "genevil"],
    "eval with a suite that is a run": ["eval", "{run}", "--suite", "{run}/config.yaml"],
    "eval with a suite of the other task": ["eval", "{run}", "--suite", "vlm_quickstart"],
    "eval with a shard of nothing": ["eval", "{run}", "--suite", "quickstart", "--shard", "3/2", "-o", "out"],
    "eval with a shard and no folder": ["eval", "{run}", "--suite", "quickstart", "--shard", "1/2"],
    "eval with an option that a suite pins": ["eval", "{run}", "--suite", "quickstart", "validation.height=8"],
    "eval with an unknown option of a suite": ["eval", "{run}", "--suite", "quickstart", "suite.steps=8"],
    "eval with an adapter that is none": ["eval", "{model}+{place}", "--suite", "quickstart"],
    "eval that merges what is no evaluation": ["eval", "--merge", "{run}", ".", "-o", "out"],
    "eval that merges and compares": ["eval", "--merge", "a", "--compare", "b", "c"],
    "eval that compares a run with itself": ["eval", "--compare", "{run}", "{run}"],
    "eval with a flag of sample": ["eval", "{run}", "--steps", "3"],
    "sample nothing": ["sample", "{run}"],
    "sample from nowhere": ["sample", "runs/nothing", "a cat"],
    "sample from a file": ["sample", "{place}/prompts.txt", "a cat"],
    "sample an empty prompt": ["sample", "{run}", ""],
    "sample no pictures": ["sample", "{run}", "a cat", "-n", "0"],
    "sample a trillion pictures": ["sample", "{run}", "a cat", "-n", "1000000000000"],
    "sample with squared digits": ["sample", "{run}", "a cat", "-n", "²"],
    "sample without end": ["sample", "{run}", "a cat", "--steps", "100000000"],
    "sample with a guidance of everything": ["sample", "{run}", "a cat", "--guidance", "1e300"],
    "sample with no number": ["sample", "{run}", "a cat", "--guidance", "nan"],
    "sample as high as a tower": ["sample", "{run}", "a cat", "--height", "100000000"],
    "sample with a seed of a thousand digits": ["sample", "{run}", "a cat", "--seed", "9" * 1000],
    "sample from a file that is not there": ["sample", "{run}", "-p", "nothing.txt"],
    "sample from a device": ["sample", "{run}", "-p", "/dev/zero"],
    "sample from an enormous name": ["sample", "{run}", "-p", LONG],
    "sample into a file": ["sample", "{run}", "a cat", "-o", "{place}/prompts.txt"],
    "sample into the kernel": ["sample", "{run}", "a cat", "-o", "/proc/x"],
    "draw about a picture": ["sample", "{run}", "a cat", "-i", "{place}/pictures/0.png"],
    "answer about nothing": ["sample", "{answers}", "What?", "-i", "nothing.png"],
    "answer about words": ["sample", "{answers}", "What?", "-i", "{place}/prompts.txt"],
    "answer about a device": ["sample", "{answers}", "What?", "-i", "/dev/zero"],
    "answer about a folder": ["sample", "{answers}", "What?", "-i", "{place}"],
    "answer with steps": ["sample", "{answers}", "What?", "--steps", "3"],
    "export nothing": ["export"],
    "export a run that is not there": ["export", "runs/nothing", "-o", "out"],
    "export into what is there": ["export", "{run}", "-o", "{place}"],
    "export into a file": ["export", "{run}", "-o", "{place}/prompts.txt"],
    "export below a file": ["export", "{run}", "-o", "{place}/prompts.txt/x"],
    "export into the kernel": ["export", "{run}", "-o", "/proc/x"],
    "export adapters that are not there": ["export", "{answers}", "-o", "out", "--format", "lora"],
    "export into a format of others": ["export", "{run}", "-o", "out", "--format", "gguf"],
    "export an enormous name": ["export", LONG, "-o", "out"],
    "report nothing": ["report"],
    "report a run that is not there": ["report", "runs/nothing"],
    "report a file": ["report", "{place}/prompts.txt"],
    "report an enormous name": ["report", LONG],
    "report with an option": ["report", "{run}", "steps=3"],
    "config of nothing": ["config", "nothing"],
    "config of a wrong option": ["config", "{drawing}", "rollout.m=3"],
    "recipes of something": ["recipes", "x"],
    "doctor of something": ["doctor", "x"],
}  # fmt: skip
WORKS: dict[str, list[str]] = {
    "config with a long comment": ["config", "{drawing}", "seed=12345"],
    "a prompt with control characters": ["sample", "{run}", "\x1b[31mcat\x07", "-n", "1", "-o", "out"],
    "a question with control characters": ["sample", "{answers}", "\x1b[31mWhat?\x07", "-n", "1", "-o", "out"],
    "a question of markup": ["sample", "{answers}", "[red]What?[/red][/nothing]", "-n", "1", "-o", "out"],
    "a question of another alphabet": ["sample", "{answers}", "ما هذا؟ 👩‍👩‍👧‍👦", "-n", "1", "-o", "out"],
    "a prompt of another alphabet": ["sample", "{run}", "قطة", "-n", "1", "-o", "out"],
    "a folder with odd letters": ["train", "{drawing}", 'output_dir="a b/ä\\t[red]$(x)"'],
    "a folder with control characters": ["train", "{drawing}", 'output_dir="\\e[31mrun"'],
    "a long question": ["sample", "{answers}", "What? " * 200, "-n", "1", "-o", "out"],
    "eval of a checkpoint": ["eval", "{run}/checkpoints/00000002"],
    "sample with other digits": ["sample", "{run}", "a cat", "-n", "٣", "-o", "out"],
    "eval of a recipe": ["eval", "{drawing}"],
}


LINES: dict[Expect, dict[str, list[str]]] = {"refused": REFUSED, "works": WORKS}
# those that are also given where the terminal can show ASCII alone
ON_AN_OLD_TERMINAL = {
    "a command of another alphabet", "an option of another alphabet", "a question of another alphabet",
    "a folder with odd letters", "a prompt of another alphabet",
}  # fmt: skip


def cases() -> Iterator[Case]:
    for expect, lines in LINES.items():
        for name, line in lines.items():
            yield _case(name, line, expect)
            if name in ON_AN_OLD_TERMINAL:
                yield _case(f"{name}, on an old terminal", line, expect, (("PYTHONIOENCODING", "ascii"),))


def _case(name: str, line: list[str], expect: Expect, environment: tuple[tuple[str, str], ...] = ()) -> Case:
    def make(place: Place, scratch: Path) -> list[str]:
        words = {
            "{drawing}": str(place.drawing),
            "{seeing}": str(place.seeing),
            "{run}": str(place.run("drawing")),
            "{answers}": str(place.run("seeing")),
            "{model}": str(place.folder / "pipeline"),
            "{place}": str(place.folder),
        }
        given = []
        for one in line:
            for word, meaning in words.items():
                one = one.replace(word, meaning)
            given.append(one)
        return given

    return Case(kind="command lines", name=name, make=make, expect=expect, environment=environment)
