"""A stand-in for an OpenAI-compatible endpoint, for faults that a real one does not show on demand.

The real one is SGLang's, in tests/integration/test_eval.py.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LOST, SILENT = "lost", "silent"
"""The connection ends without an answer; no answer for a while."""
KEY = "sk-secret-4711"


def completion(text: str | None, finish: str = "stop", tokens: int | None = 7) -> dict[str, Any]:
    """A whole answer."""
    usage = {} if tokens is None else {"usage": {"completion_tokens": tokens}}
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": finish}
    return {"choices": [choice], **usage}


@dataclass
class StandInEndpoint:
    """Answers chat requests by `reply`, after the faults that are given."""

    url: str
    reply: Callable[[dict[str, Any]], Any] = lambda request: completion("TASK_COMPLETE")
    faults: list[Any] = field(default_factory=list)
    """Of the next chat requests: a status, (status, text), LOST, SILENT, or an answer."""
    models: Any = field(default_factory=lambda: {"data": [{"id": "some-model"}]})
    """What /v1/models answers; a number: that status."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Chat requests that came."""
    keys: list[str | None] = field(default_factory=list)
    retry_after: str = "0.01"
    """Seconds that it asks to wait when it is asked too often (429)."""


@contextmanager
def standin_endpoint() -> Iterator[StandInEndpoint]:
    """One that runs meanwhile."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/v1/models"
            self.answer(endpoint.models if known else 404)

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            endpoint.keys.append(self.headers.get("Authorization"))
            if self.path != "/v1/chat/completions":
                return self.answer(404)
            endpoint.requests.append(request)
            self.answer(endpoint.faults.pop(0) if endpoint.faults else endpoint.reply(request))

        def answer(self, what: Any) -> None:
            if what == LOST:
                return
            if what == SILENT:
                time.sleep(1.0)
                return
            status, text = 200, json.dumps(what)
            if isinstance(what, int):
                status, text = what, "refused"
            elif isinstance(what, tuple):
                status, text = what
            elif isinstance(what, str):
                text = what
            self.send_response(status)
            if status == 429:
                self.send_header("Retry-After", endpoint.retry_after)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *told: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint = StandInEndpoint(f"http://127.0.0.1:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
