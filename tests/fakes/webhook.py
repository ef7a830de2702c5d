"""A fake webhook: a real HTTP server in a thread that answers what the test scripts, and keeps what it was sent."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class FakeWebhook:
    """`status`, `content` and `headers` are the coming calls' answers; `pause_s` goes before each."""

    url: str = ""
    status: int = 200
    content: bytes = b'{"value": 1, "text": "fine"}'
    headers: dict[str, str] = field(default_factory=dict)
    pause_s: float = 0.0
    drip_s: float = 0.0  # between one byte of the content and the next
    calls: list[tuple[dict[str, str], Any]] = field(default_factory=list)


@contextmanager
def serve_webhook() -> Iterator[FakeWebhook]:
    """Serve a webhook on a free port of this machine."""
    webhook = FakeWebhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            webhook.calls.append(({name.lower(): value for name, value in self.headers.items()}, json.loads(body)))
            status, content = webhook.status, webhook.content
            time.sleep(webhook.pause_s)
            self.send_response(status)
            for name, value in {**webhook.headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            with suppress(ConnectionError):  # a caller that waits no longer
                self.end_headers()
                for byte in content if webhook.drip_s else ():
                    self.wfile.write(bytes([byte]))
                    time.sleep(webhook.drip_s)
                if not webhook.drip_s:
                    self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    webhook.url = f"http://127.0.0.1:{server.server_address[1]}/grade"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield webhook
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
