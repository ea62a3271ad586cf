"""What Burnish runs, opens and imports: nothing of strangers, and nothing heavy before a command line is checked."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import cache

import pytest

from tests.support.optional import NEED_RAY
from tests.support.shown import ROOT

PACKAGE, TESTS = ROOT / "burnish", ROOT / "tests"
# calls that could run foreign code or open a door, by the end of their dotted names; docs/security.md tells users
NEVER = [
    "pickle.load", "pickle.Unpickler", "marshal.load", "shelve.open", "joblib.load", "eval", "exec", "compile",
    "__import__", "os.system", "os.popen", "tempfile.mktemp", "extractall", "unpack_archive", "yaml.unsafe_load",
    "yaml.full_load", "yaml.load_all", "urlopen", "build_opener", "HTTPConnection", "HTTPSConnection", "httpx2.Client",
    "httpx2.stream", "create_server", "HTTPServer", "ThreadingHTTPServer", "exec_module", "json.load",
]  # fmt: skip
# how often others are called, and why what is read there is our own
COUNTED = {
    "pickle.loads": (2, "an error, and a plug-in under test, that the same process has just pickled"),
    "marshal.loads": (4, "prompts that this run has packed; no file holds them"),
    "AsyncClient": (1, "one that follows no redirects"),
    "TCPStore": (2, "bound to the address that is meant"),
    "listen": (2, "a reward service where the user says, beyond this machine with a token alone; a board at 127.0.0.1"),
    "import_module": (15, "modules of the package or of libraries, and files that the user names"),
    "resolve_name": (1, "functions of the package, named in advantages and surrogates"),
    "json.loads": (2, "what the same line has written; vLLM's process, over a pair of sockets"),
    "all_gather_object": (1, "ranks that train as one, over connections that they opened themselves"),
    "broadcast_object_list": (1, "the same"),
}
UNPICKLERS = 2  # of the index of shards, which knows its classes; between workers of a cluster


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Everything in the package, with the file that it is in."""
    return [
        (file.relative_to(PACKAGE).as_posix(), node)
        for file in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    ]


@cache
def calls() -> list[tuple[str, str, ast.Call]]:
    return [(file, dotted_name(node.func), node) for file, node in nodes() if isinstance(node, ast.Call)]


def dotted_name(node: ast.expr) -> str:
    """Of what is called; it begins with a dot where that belongs to the result of something."""
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def is_called(name: str, dotted: str) -> bool:
    # eval() and compile() are functions of Python's, model.eval() and re.compile() are not
    return dotted == name or (("." in name or name not in ("eval", "exec", "compile")) and dotted.endswith(f".{name}"))


def test_what_could_run_foreign_code_is_called_only_where_it_is_said_why():
    by_end: dict[str, list[tuple[str, str]]] = {}
    for file, dotted, _ in calls():
        by_end.setdefault(dotted.rpartition(".")[2], []).append((file, dotted))
    found = {
        name: [file for file, dotted in by_end.get(name.rpartition(".")[2], []) if is_called(name, dotted)]
        for name in [*NEVER, *COUNTED]
    }
    expected = dict.fromkeys(NEVER, 0) | {name: count for name, (count, _) in COUNTED.items()}
    assert {name: files for name, files in found.items() if len(files) != expected[name]} == {}
    readers = {file for file, node in nodes() if isinstance(node, ast.Attribute) and "Unpickler" in node.attr}
    assert len(readers) == UNPICKLERS, "pickle's own reader is built upon only where it is said why"


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
            assert [ast.unparse(one) for one in call.args[1:]] == ["_Loader"], file
    everywhere = [file for file, node in nodes() if isinstance(node, ast.Constant) and node.value in ("0.0.0.0", "::")]
    assert everywhere == [], "an address of every network is written down"


HEAVY = {"torch", "diffusers", "transformers", "peft", "ray", "vllm", "onnxruntime", "matplotlib"}
REFUSED = "from burnish.cli import main; assert main(['train', {!r}, {!r}]) == 2"


@pytest.mark.parametrize("code", [
    "import burnish",
    "import burnish; burnish.load('quickstart').check()",
    REFUSED.format("quickstart", "algorithm.no_such=1"),
    REFUSED.format("qwen25_vl/grpo", "model.device=cpu"),
    "from burnish.cli import main\ntry:\n    main(['train', '--help'])\nexcept SystemExit:\n    pass",
])  # fmt: skip
def test_a_command_line_is_checked_before_anything_heavy_is_imported(code):
    code = f"{code}\nimport sys; print('modules', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    imported = set(done.stdout.splitlines()[-1].split())
    assert not HEAVY & imported
    if code.startswith("import burnish\n"):
        assert not [name for name in imported if name.startswith("burnish.")]


@pytest.mark.thorough
def test_without_ray_what_needs_it_is_skipped_with_the_way_out_and_all_else_is_collected():
    path = os.pathsep.join([str(TESTS / "support" / "without_ray"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    needing = [file for file in TESTS.rglob("test_*.py") if file.relative_to(TESTS).as_posix().startswith(NEED_RAY)]
    for arguments, expected in ((needing[:2], 5), (["--collect-only", TESTS], 0)):  # 5: all are skipped
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-rs", *map(str, arguments)],
            cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == expected, done.stdout + done.stderr
        assert expected == 0 or "needs Ray: pip install 'burnish[ray]'" in done.stdout
        assert "error" not in done.stdout.splitlines()[-1]
