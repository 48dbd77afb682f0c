"""A server that speaks OpenAI's chat completions, for tests of whoever asks one."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CUT = 0
"""The code of an answer that breaks off in the middle."""


class Endpoint:
    """A server that speaks chat completions: what it was asked, and what it is to answer, in order."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.idempotency_keys: list[str | None] = []
        self.answers: list[tuple[int, str | dict[str, Any]]] = []
        """Codes and texts, or messages; where none is left, a score."""
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.asked.append(body)
                endpoint.keys.append(self.headers["Authorization"])
                endpoint.idempotency_keys.append(self.headers["Idempotency-Key"])
                code, text = endpoint.answers.pop(0) if endpoint.answers else (200, "fine.\nScore: 7")
                message = text if isinstance(text, dict) else {"content": text}
                said = json.dumps({"choices": [{"message": message}]}) if code == 200 else str(text)
                is_cut = code == CUT
                self.send_response(200 if is_cut else code)
                if is_cut:
                    self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(said.encode())

            def log_message(self, *words: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"


@contextmanager
def serving() -> Iterator[Endpoint]:
    """An endpoint that answers until the block ends."""
    made = Endpoint()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join()
