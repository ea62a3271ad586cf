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

from tests.support.fake_hub import FakeHub, digest
from tests.support.http_servers import body_of, send, serving

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
                return send(request, 401, b"no", {"X-Error-Code": "RepoNotFound"})
            return super().answer(request)
        body = body_of(request)
        self.asked.append((request.command, path, request.headers.get("Authorization") or ""))
        if self.elsewhere and not path.endswith("validate-yaml"):
            return send(request, 307, b"", {"Location": f"{self.elsewhere}/{path}"})
        if self.failing and self.failing in path:
            return send(request, 500, b"out of order")
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return send(request, 401, {"error": "Invalid username or password."})
        return self._write(request, path, body)

    def _write(self, request: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
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
            if line["key"] == "header":
                self.messages.append(value["summary"])
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            else:
                assert line["key"] == "lfsFile", line
                files[value["path"]] = self.blobs[value["oid"]]
        commit = self.publish(name, files)
        address = f"{self.url}/{name}/commit/{commit}"
        return send(request, 200, {"commitOid": commit, "commitUrl": address, "success": True})

    def hand_out(self, request: BaseHTTPRequestHandler) -> None:
        if request.command != "PUT":
            return super().hand_out(request)
        path = unquote(urlsplit(request.path).path).lstrip("/")
        self.stored.append((path, request.headers.get("Authorization") or ""))
        content = body_of(request)
        assert hashlib.sha256(content).hexdigest() == path.removeprefix("upload/")
        self.blobs[digest(content)] = content
        return send(request, 200, b"")

    def stranger(self, request: BaseHTTPRequestHandler) -> None:
        """A host that the hub redirects to and nobody has asked for."""
        body_of(request)
        self.redirected.append((request.path, request.headers.get("Authorization") or ""))
        send(request, 403, b"no")

    def files(self, name: str) -> dict[str, bytes]:
        """The newest commit of a repository."""
        return self.commits[name][self.branches[name]["main"]]


@contextmanager
def writable_hub() -> Iterator[WritableHub]:
    """A hub, the host on which it keeps large files, and one that has nothing to do with it."""
    hub = WritableHub()
    with serving(hub.answer) as hub.url, serving(hub.hand_out, "127.0.0.2") as hub.storage:
        yield hub
