"""Small HTTP servers on this machine, for what clients must stand: right, wrong, slow and lying ones."""

import json
import math
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USAGE = {"prompt_tokens": 300, "completion_tokens": 1}


def listing(shares: dict[str, float], *, usage: dict[str, int] | None = USAGE) -> dict[str, Any]:
    """A reply of one token with the likeliest ones and their probabilities."""
    top = [dict[str, Any](token=token, logprob=math.log(share), bytes=None) for token, share in shares.items()]
    first = {**max(top, key=lambda one: one["logprob"]), "top_logprobs": top}
    choice = {"index": 0, "message": {"role": "assistant", "content": first["token"]}, "finish_reason": "length"}
    return {"choices": [choice | {"logprobs": {"content": [first]}}], "usage": usage}


def writing(text: str | None, *, reason: str = "stop", refusal: str | None = None) -> dict[str, Any]:
    """A reply that is a text, or a refusal."""
    message = {"role": "assistant", "content": text, "refusal": refusal}
    return {"choices": [{"index": 0, "message": message, "finish_reason": reason}], "usage": USAGE}


def question_of(request: dict[str, Any]) -> str:
    return str(request["messages"][0]["content"][-1]["text"])


def images_of(request: dict[str, Any]) -> list[str]:
    return [part["image_url"]["url"] for part in request["messages"][0]["content"][:-1]]


def body_of(request: BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return request.rfile.read(int(request.headers.get("Content-Length") or 0))
    content = b""
    while size := int(request.rfile.readline(), 16):
        content += request.rfile.read(size)
        request.rfile.readline()
    request.rfile.readline()
    return content


def send(request: BaseHTTPRequestHandler, status: int, content: Any, headers: Mapping[str, str] | None = None) -> None:
    """Answer a request: bytes as they are, anything else as JSON."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    request.send_response(status)
    for name, value in (headers or {}).items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)


@contextmanager
def serving(answer: Callable[[Any], None], host: str = "127.0.0.1") -> Iterator[str]:
    """Have ``answer`` answer requests on loopback until the context ends; the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def do_GET(self) -> None:
            answer(self)

        do_HEAD = do_POST = do_PUT = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    with _Server((host, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://{host}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(10)


class _Server(ThreadingHTTPServer):
    """Whose connections end with it: one that a client keeps would answer on the port of the next server."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, *args: Any) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        for one in list(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *where: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that gave up is no error of the server's
            super().handle_error(*where)


class JsonServer:
    """Answers as its ``reply`` says: (status, content, *headers) for a request and their count so far."""

    def __init__(self, reply: Callable[[Any, int], tuple[Any, ...]], greeting: Any) -> None:
        """Args: ``greeting`` is what a GET is answered with."""
        self.reply, self.lock, self.url, self.greeting = reply, threading.Lock(), "", greeting
        self.got: list[Any] = []
        self.asked: list[str] = []  # paths of GET
        self.headers_seen: list[dict[str, str]] = []

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        asks = request.command == "GET"
        message = None if asks else json.loads(body_of(request))
        with self.lock:
            self.headers_seen.append(dict(request.headers))
            if asks:
                self.asked.append(request.path)
            else:
                self.got.append(message)
            count = len(self.got)
        status, content, *headers = (200, self.greeting) if asks else self.reply(message, count)
        send(request, status, content, dict(headers))


@contextmanager
def json_server(reply: Callable[[Any, int], tuple[Any, ...]], greeting: Any = None) -> Iterator[JsonServer]:
    one = JsonServer(reply, greeting)
    with serving(one.answer) as one.url:
        yield one


@contextmanager
def dripping(head: bytes, drop: bytes, pause: float = 0.05, most: int = 200) -> Iterator[str]:
    """A server that says ``head``, and then a little again and again; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            try:
                connection, _ = listening.accept()
                with connection:
                    connection.sendall(head)
                    for _ in range(most):
                        connection.sendall(drop)
                        time.sleep(pause)
            except OSError:  # the client has had enough
                pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
