"""A Hugging Face hub on loopback: commits and branches of models, who asked for what, and what is written to it."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from tests.support.http_servers import body_of, send, serving

if TYPE_CHECKING:
    import pytest

Files = dict[str, bytes]
TOKEN = "hf_ThisIsWhatNobodyMaySee"


@dataclass
class FakeHub:
    """Models by name: their commits, and which commit a branch is at. Who has ``TOKEN`` may write below ``owner``."""

    commits: dict[str, dict[str, Files]] = field(default_factory=dict)
    branches: dict[str, dict[str, str]] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, authorization
    stored: list[tuple[str, str]] = field(default_factory=list)  # path and authorization, at the second host
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)  # by model: status, and the hub's code of it
    private: dict[str, bool] = field(default_factory=dict)
    cards: dict[str, dict[str, str]] = field(default_factory=dict)  # what a model's card says for programs
    broken: set[str] = field(default_factory=set)  # files whose connection ends in the middle
    url: str = ""
    storage: str = ""  # where large files are kept: another host, to which the hub redirects
    owner: str = "me"
    blobs: dict[str, bytes] = field(default_factory=dict)  # large files by their SHA-256
    elsewhere: str = ""  # another host, to which writes are redirected
    redirected: list[tuple[str, str]] = field(default_factory=list)  # what came there: path and authorization

    def publish(self, name: str, files: Files, branch: str = "main") -> str:
        """A new commit, to which a branch moves."""
        text = json.dumps([name, sorted((path, hashlib.sha1(content).hexdigest()) for path, content in files.items())])
        commit = hashlib.sha1(text.encode()).hexdigest()
        self.commits.setdefault(name, {})[commit] = dict(files)
        self.branches.setdefault(name, {})[branch] = commit
        return commit

    def _at(self, name: str, revision: str) -> str | None:
        commits = self.commits.get(name, {})
        return revision if revision in commits else self.branches.get(name, {}).get(revision)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(request.path).path).lstrip("/")
        authorization = request.headers.get("Authorization") or ""
        self.asked.append((request.command, path, authorization))
        if request.command not in ("GET", "HEAD"):
            return self._written(request, path, authorization, body_of(request))
        api = path.startswith(("api/models/", "api/datasets/"))
        words = path.removeprefix("api/").removeprefix("models/").removeprefix("datasets/").split("/")
        name, rest = "/".join(words[:2]), words[2:]
        hidden = self.private.get(name) and authorization != f"Bearer {TOKEN}"
        if name in self.refusals or name not in self.commits or hidden:
            status, code = self.refusals.get(name, (401, "RepoNotFound"))
            return send(request, status, b"no", {"X-Error-Code": code, "X-Error-Message": "refused"})
        commit = self._at(name, rest[1] if rest else "main")
        if commit is None:
            return send(request, 404, b"no", {"X-Error-Code": "RevisionNotFound"})
        files = self.commits[name][commit]
        if api:
            return send(request, 200, self.listed(rest, name, commit, files))
        file = "/".join(rest[2:])
        if file not in files:
            return send(request, 404, b"no", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        content, headers = files[file], {"X-Repo-Commit": commit, "ETag": f'"{digest(files[file])}"'}
        if file.endswith(".safetensors"):
            headers |= {"X-Linked-Size": str(len(content)), "X-Linked-Etag": headers["ETag"]}
            return send(request, 302, b"", {**headers, "Location": f"{self.storage}/{name}/{commit}/{file}"})
        return send(request, 200, content, headers)

    def _written(self, request: BaseHTTPRequestHandler, path: str, authorization: str, body: bytes) -> None:
        if self.elsewhere and not path.endswith("validate-yaml"):
            return send(request, 307, b"", {"Location": f"{self.elsewhere}/{path}"})
        if authorization != f"Bearer {TOKEN}":
            return send(request, 401, {"error": "Invalid username or password."})
        if path == "api/validate-yaml":
            return send(request, 200, {"errors": [], "warnings": []})
        if path == "api/repos/create":
            return self._create(request, json.loads(body))
        name = "/".join(path.removeprefix("api/models/").split("/")[:2]).removesuffix(".git")
        if name not in self.commits:
            return send(request, 404, b"no", {"X-Error-Code": "RepoNotFound"})
        if "/preupload/" in path:
            files = [{"path": one["path"], "uploadMode": "lfs" if one["path"].endswith(".safetensors") else "regular",
                      "shouldIgnore": False, "oid": None} for one in json.loads(body)["files"]]  # fmt: skip
            return send(request, 200, {"files": files})
        if path.endswith("/info/lfs/objects/batch"):
            objects = [one | {"actions": {"upload": {"href": f"{self.storage}/upload/{one['oid']}"}}}
                       for one in json.loads(body)["objects"]]  # fmt: skip
            return send(request, 200, {"transfer": "basic", "objects": objects})
        assert "/commit/" in path, path
        return self._commit(request, name, [json.loads(line) for line in body.splitlines()])

    def _create(self, request: BaseHTTPRequestHandler, asked: dict[str, Any]) -> None:
        if asked["organization"] != self.owner:
            return send(request, 403, {"error": "You don't have the rights"})
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.commits:
            return send(request, 409, {"url": f"{self.url}/{name}"})
        self.private[name] = asked.get("visibility", "public") == "private" or bool(asked.get("private"))
        self.publish(name, {".gitattributes": b"*.safetensors filter=lfs\n"})
        return send(request, 200, {"url": f"{self.url}/{name}"})

    def _commit(self, request: BaseHTTPRequestHandler, name: str, lines: list[dict[str, Any]]) -> None:
        files = dict(self.commits[name][self.branches[name]["main"]])
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.blobs[value["oid"]]
        commit = self.publish(name, files)
        address = f"{self.url}/{name}/commit/{commit}"
        return send(request, 200, {"commitOid": commit, "commitUrl": address, "success": True})

    def listed(self, rest: list[str], name: str, commit: str, files: Files) -> Any:
        """What the hub says of a model, or of a folder in it."""
        if rest and rest[0] == "tree":
            inside = "".join(f"{word}/" for word in rest[2:])
            folders = {path[: path.index("/", len(inside))] for path in files
                       if path.startswith(inside) and "/" in path[len(inside) :]}  # fmt: skip
            return [{"type": "directory", "path": path, "oid": ""} for path in sorted(folders)] + [
                {"type": "file", "path": path, "size": len(one), "oid": digest(one)}
                for path, one in files.items() if path.startswith(inside)
            ]  # fmt: skip
        siblings = [{"rfilename": path, "size": len(one), "blobId": digest(one)} for path, one in files.items()]
        private, card = self.private.get(name, False), self.cards.get(name, {})
        return {"id": name, "modelId": name, "sha": commit, "private": private, "tags": [], "siblings": siblings,
                "cardData": card}  # fmt: skip

    def hand_out(self, request: BaseHTTPRequestHandler) -> None:
        """What the second host answers."""
        path = unquote(urlsplit(request.path).path).lstrip("/")
        self.stored.append((path, request.headers.get("Authorization") or ""))
        if request.command == "PUT":
            content = body_of(request)
            self.blobs[digest(content)] = content
            return send(request, 200, b"")
        organisation, name, commit, *rest = path.split("/")
        content = self.commits[f"{organisation}/{name}"][commit]["/".join(rest)]
        if "/".join(rest) in self.broken:
            request.send_response(200)
            request.send_header("Content-Length", str(len(content)))
            request.end_headers()
            request.wfile.write(content[: len(content) // 2])
            request.close_connection = True
            return None
        start = int(request.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        return send(request, 206 if start else 200, content[start:], {"ETag": f'"{digest(content)}"'})

    def stranger(self, request: BaseHTTPRequestHandler) -> None:
        """A host that the hub redirects to and nobody has asked for."""
        body_of(request)
        self.redirected.append((request.path, request.headers.get("Authorization") or ""))
        send(request, 403, b"no")

    def files(self, name: str) -> Files:
        """The newest commit of a repository."""
        return self.commits[name][self.branches[name]["main"]]


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """A hub, and another host on which it keeps large files."""
    hub = FakeHub()
    with serving(hub.answer) as hub.url, serving(hub.hand_out, "127.0.0.2") as hub.storage:
        yield hub


def use(monkeypatch: pytest.MonkeyPatch, hub: FakeHub, cache: str) -> None:
    """Let huggingface_hub of this process ask a fake hub, and keep what it gets in a folder."""
    from huggingface_hub import constants
    from huggingface_hub.utils import _http

    # its pauses between attempts
    monkeypatch.setattr(_http, "time", SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None}))
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", cache)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)


def use_for_data(monkeypatch: pytest.MonkeyPatch, hub: FakeHub, cache: str) -> None:
    """Let the datasets library of this process ask a fake hub too."""
    import datasets
    from huggingface_hub import HfFileSystem

    use(monkeypatch, hub, f"{cache}/hub")
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", hub.url)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", f"{cache}/datasets")
    monkeypatch.setattr(datasets.config, "HF_CACHE_HOME", cache)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    HfFileSystem.clear_instance_cache()
