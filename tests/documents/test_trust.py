"""What Burnish runs, opens and imports: nothing of strangers, and nothing heavy before a command line is checked."""

import ast
import re
import subprocess
import sys
from functools import cache

import pytest

from tests.support.shown import ROOT

PACKAGE, TESTS = ROOT / "burnish", ROOT / "tests"
# calls that could run foreign code or open a door, by the end of their dotted names; SECURITY.md tells users
NEVER = [
    "pickle.load", "pickle.Unpickler", "marshal.load", "shelve.open", "joblib.load", "eval", "exec", "compile",
    "__import__", "os.system", "os.popen", "tempfile.mktemp", "extractall", "unpack_archive", "yaml.unsafe_load",
    "yaml.full_load", "yaml.load_all", "urlopen", "build_opener", "HTTPConnection", "HTTPSConnection", "httpx2.Client",
    "httpx2.stream", "create_server", "HTTPServer", "ThreadingHTTPServer", "exec_module", "json.load",
]  # fmt: skip
# eval() and compile() are functions of Python's, model.eval() and re.compile() are not
DOTTED = tuple(f".{name}" for name in NEVER if "." in name or name not in ("eval", "exec", "compile"))
ASKED = re.compile(
    r"torch\.load|from_pretrained|trust_remote_code|allow_pickle|shell|init_method|yaml\.load|0\.0\.0\.0|\"::\""
)


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Everything in files of the package that have any of these words, with the file that it is in."""
    read = {file: file.read_text(encoding="utf-8") for file in sorted(PACKAGE.rglob("*.py"))}
    return [
        (file.relative_to(PACKAGE).as_posix(), node)
        for file, text in read.items()
        if ASKED.search(text)
        for node in ast.walk(ast.parse(text))
    ]


@cache
def calls() -> list[tuple[str, str, ast.Call]]:
    return [(file, dotted_name(node.func), node) for file, node in nodes() if isinstance(node, ast.Call)]


def dotted_name(node: ast.expr) -> str:
    """Of what is called; it begins with a dot where that belongs to the result of something."""
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def test_what_could_run_foreign_code_is_never_called():
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        called = set(re.findall(r"(?<![\w.])(?<!def )([\w.]+)\(", file.read_text(encoding="utf-8")))
        found += [(file.name, one) for one in called if one in NEVER or one.endswith(DOTTED)]
    assert found == []


def test_calls_that_may_run_code_say_that_they_must_not():
    for file, dotted, call in calls():
        given = {one.arg: ast.unparse(one.value) for one in call.keywords}
        if dotted.endswith("torch.load"):
            assert given.get("weights_only") == "True", file
        if dotted.startswith("Auto") and dotted.endswith(".from_pretrained"):
            assert given.get("trust_remote_code") == "False", file
        for name in ("trust_remote_code", "allow_pickle", "shell"):
            assert given.get(name) in (None, "False"), file
        assert "init_method" not in given, f"{file}: its store would listen on every network"
        if dotted.endswith("yaml.load"):
            assert [ast.unparse(one) for one in call.args[1:]] in (["_Loader"], ["yaml.CSafeLoader"]), file
    everywhere = [file for file, node in nodes() if isinstance(node, ast.Constant) and node.value in ("0.0.0.0", "::")]
    assert everywhere == [], "an address of every network is written down"


HEAVY = {"torch", "diffusers", "transformers", "peft", "ray", "vllm", "onnxruntime", "matplotlib"}


@pytest.mark.parametrize("code", ["import burnish", "import burnish; burnish.load('quickstart').check()"])
def test_a_recipe_is_checked_before_anything_heavy_is_imported(code):
    code = f"{code}\nimport sys; print('modules', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    imported = set(done.stdout.splitlines()[-1].split())
    assert not HEAVY & imported
    if code.startswith("import burnish\n"):
        assert not [name for name in imported if name.startswith("burnish.")]
