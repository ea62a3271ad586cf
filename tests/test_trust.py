"""Nothing from a network or a foreign folder is run: the ways to do so by accident are nowhere in the package.

Each exception says why what is read there is our own. docs/security.md tells users the same.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "burnish"

# a call, by the end of its dotted name -> files that may have it, and why
FORBIDDEN: dict[str, dict[str, str]] = {
    "pickle.load": {},
    "pickle.loads": {"runtime/actor.py": "an error that the line before has pickled"},
    "pickle.Unpickler": {},
    "marshal.load": {}, "marshal.loads": {"types/packed.py": "prompts that this run has packed; no file holds them"},
    "shelve.open": {}, "joblib.load": {},
    "eval": {}, "exec": {}, "compile": {}, "__import__": {},
    "os.system": {}, "os.popen": {}, "tempfile.mktemp": {},
    "extractall": {}, "unpack_archive": {},
    "yaml.unsafe_load": {}, "yaml.full_load": {}, "yaml.load_all": {},
    "urlopen": {},
    "build_opener": {}, "HTTPConnection": {}, "HTTPSConnection": {}, "httpx2.Client": {}, "httpx2.stream": {},
    "AsyncClient": {"utils/http.py": "one that follows no redirects"},
    "TCPStore": {"training/rendezvous.py": "bound to the address that is meant"},
    "create_server": {}, "HTTPServer": {}, "ThreadingHTTPServer": {},
    "listen": {
        "commands/serve_reward.py": "where the user says, and beyond this machine with a token alone",
        "commands/board.py": "at 127.0.0.1, never elsewhere, and only under that name",
    },
    "import_module": {
        "cli.py": "the package's own commands",
        "config/tasks.py": "the parts of a task, whose names are written above",
        "registry.py": "the package's own modules",
        "models/pixel_functions.py": "modules of transformers, which the check in the line before holds to",
        "models/flow/parts.py": "diffusers or transformers, as the same line says",
        "models/flow/pipeline.py": "diffusers or transformers, as the line before says",
        "tasks/language/vllm/apart/burnish_vllm/worker.py": "modules of vLLM's, whose names are written above",
        "trackers/worker.py": "the package's own modules, whose names are written above",
        "utils/user_code.py": "modules and files that the user names",
    },
    "resolve_name": {"algorithms/base.py": "functions of the package, named in advantages.py and surrogates.py"},
    "exec_module": {},
    "json.loads": {
        "config/text.py": "what the same line has written",
        "tasks/language/vllm/apart/burnish_vllm/wire.py": "vLLM's process, over a pair of sockets",
    },
    "json.load": {},
    "all_gather_object": {"training/ranks.py": "ranks that train as one, over connections that they opened themselves"},
    "broadcast_object_list": {"training/ranks.py": "the same"},
}  # fmt: skip


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
    return [(file, ast.unparse(node.func), node) for file, node in nodes() if isinstance(node, ast.Call)]


def is_called(name: str, dotted: str) -> bool:
    # eval() and compile() are functions of Python's, model.eval() and re.compile() are not
    return dotted == name or (("." in name or name not in ("eval", "exec", "compile")) and dotted.endswith(f".{name}"))


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_could_run_foreign_code_is_called_only_where_it_is_said_why(name):
    assert {file for file, dotted, _ in calls() if is_called(name, dotted)} == set(FORBIDDEN[name])


def keywords(call: ast.Call) -> dict[str | None, str]:
    return {one.arg: ast.unparse(one.value) for one in call.keywords}


def test_calls_that_may_run_code_say_that_they_must_not():
    for file, dotted, call in calls():
        given = keywords(call)
        if dotted.endswith("torch.load"):
            assert given.get("weights_only") == "True", file
        if dotted.startswith("Auto") and dotted.endswith(".from_pretrained"):
            assert given.get("trust_remote_code") == "False", file
        for name in ("trust_remote_code", "allow_pickle", "shell"):
            assert given.get(name) in (None, "False"), file
        assert "init_method" not in given, f"{file}: its store would listen on every network"
        if dotted.endswith("yaml.load"):
            assert [ast.unparse(one) for one in call.args[1:]] == ["_Loader"], file


def test_no_address_of_every_network_is_written_down():
    for file, node in nodes():
        assert not (isinstance(node, ast.Constant) and node.value in ("0.0.0.0", "::")), file


READERS = {  # built upon pickle's own
    "checkpoint/shard_index.py": "knows the classes of an index and refuses all others",
    "runtime/transfer.py": "batches between workers of a Ray cluster, who may run anything in each other anyway",
}


def test_pickle_s_own_reader_is_built_upon_only_where_it_is_said_why():
    found = {file for file, node in nodes() if isinstance(node, ast.Attribute) and "Unpickler" in node.attr}
    assert found == set(READERS)
