"""A fake hub that is also written to: repositories are made, files uploaded (large ones apart) and committed."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support.fake_hub import FakeHub, _digest, _send, serving

TOKEN = "hf_ThisIsWhatNobodyMaySee"


@dataclass
class WritableHub(FakeHub):
    """A hub on which the owner of ``TOKEN`` may write below ``owner``."""

    owner: str = "me"
    blobs: dict[str, bytes] = field(default_factory=dict)  # large files by their SHA-256
    messages: list[str] = field(default_factory=list)  # of commits
    elsewhere: str = ""  # another host, to which writes are redirected
    redirected: list[tuple[str, str]] = field(default_factory=list)  # what came there: path and authorization
    failing: str = ""  # part of a path that is answered with an error of the server

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(request.path).path).lstrip("/")
        if request.command in ("GET", "HEAD"):
            name = "/".join(path.removeprefix("api/").removeprefix("models/").split("/")[:2])
            if self.private.get(name) and request.headers.get("Authorization") != f"Bearer {TOKEN}":
                return _send(request, 401, b"no", {"X-Error-Code": "RepoNotFound"})
            return super().answer(request)
        body = _body(request)
        self.asked.append((request.command, path, request.headers.get("Authorization") or ""))
        if self.elsewhere and not path.endswith("validate-yaml"):
            return _send(request, 307, b"", {"Location": f"{self.elsewhere}/{path}"})
        if self.failing and self.failing in path:
            return _send(request, 500, b"out of order")
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _send(request, 401, json.dumps({"error": "Invalid username or password."}).encode())
        return self._write(request, path, body)

    def _write(self, request: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        if path == "api/validate-yaml":
            return _json(request, {"errors": [], "warnings": []})
        if path == "api/repos/create":
            return self._create(request, json.loads(body))
        name = "/".join(path.removeprefix("api/models/").split("/")[:2]).removesuffix(".git")
        if name not in self.commits:
            return _send(request, 404, b"no", {"X-Error-Code": "RepoNotFound"})
        if "/preupload/" in path:
            files = [{"path": one["path"], "uploadMode": "lfs" if one["path"].endswith(".safetensors") else "regular",
                      "shouldIgnore": False, "oid": None} for one in json.loads(body)["files"]]  # fmt: skip
            return _json(request, {"files": files})
        if path.endswith("/info/lfs/objects/batch"):
            objects = [one | {"actions": {"upload": {"href": f"{self.storage}/upload/{one['oid']}"}}}
                       for one in json.loads(body)["objects"]]  # fmt: skip
            return _json(request, {"transfer": "basic", "objects": objects})
        assert "/commit/" in path, path
        return self._commit(request, name, [json.loads(line) for line in body.splitlines()])

    def _create(self, request: BaseHTTPRequestHandler, asked: dict[str, Any]) -> None:
        if asked["organization"] != self.owner:
            return _send(request, 403, json.dumps({"error": "You don't have the rights"}).encode())
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.commits:
            return _json(request, {"url": f"{self.url}/{name}"}, 409)
        self.private[name] = asked.get("visibility", "public") == "private" or bool(asked.get("private"))
        self.publish(name, {".gitattributes": b"*.safetensors filter=lfs\n"})
        return _json(request, {"url": f"{self.url}/{name}"})

    def _commit(self, request: BaseHTTPRequestHandler, name: str, lines: list[dict[str, Any]]) -> None:
        files = dict(self.commits[name][self.branches[name]["main"]])
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.messages.append(value["summary"])
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            else:
                assert line["key"] == "lfsFile", line
                files[value["path"]] = self.blobs[value["oid"]]
        commit = self.publish(name, files)
        address = f"{self.url}/{name}/commit/{commit}"
        return _json(request, {"commitOid": commit, "commitUrl": address, "success": True})

    def hand_out(self, request: BaseHTTPRequestHandler) -> None:
        if request.command != "PUT":
            return super().hand_out(request)
        path = unquote(urlsplit(request.path).path).lstrip("/")
        self.stored.append((path, request.headers.get("Authorization") or ""))
        content = _body(request)
        assert hashlib.sha256(content).hexdigest() == path.removeprefix("upload/")
        self.blobs[_digest(content)] = content
        return _send(request, 200, b"")

    def stranger(self, request: BaseHTTPRequestHandler) -> None:
        """A host that the hub redirects to and nobody has asked for."""
        _body(request)
        self.redirected.append((request.path, request.headers.get("Authorization") or ""))
        _send(request, 403, b"no")

    def files(self, name: str) -> dict[str, bytes]:
        """The newest commit of a repository."""
        return self.commits[name][self.branches[name]["main"]]


def _body(request: BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return request.rfile.read(int(request.headers.get("Content-Length") or 0))
    content = b""
    while size := int(request.rfile.readline(), 16):
        content += request.rfile.read(size)
        request.rfile.readline()
    request.rfile.readline()
    return content


def _json(request: BaseHTTPRequestHandler, content: Any, status: int = 200) -> None:
    _send(request, status, json.dumps(content).encode(), {"Content-Type": "application/json"})


@contextmanager
def writable_hub() -> Iterator[WritableHub]:
    """A hub, the host on which it keeps large files, and one that has nothing to do with it."""
    hub = WritableHub()
    with serving(hub.answer, "127.0.0.1") as hub.url, serving(hub.hand_out, "127.0.0.2") as hub.storage:
        yield hub
