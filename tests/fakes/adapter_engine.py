"""An engine that computes nothing but speaks vLLM's management API over real HTTP, and can be told to misbehave."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def token_logprob(name: str, token: int) -> float:
    """What every fake engine says of a token, whatever came before."""
    return -0.1 - (token % 7) / 10


@dataclass(kw_only=True)
class FakeEngine:
    """The engine's state, and what it should do wrong."""

    base_url: str = ""
    base_model: str = "tiny"
    adapters: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    offset: float = 0.0  # added to every log-prob of adapters: other weights than the trainer's
    refuses: str = ""  # words with which it refuses to load
    breaks: str = ""  # a path on which it answers 500
    delay_s: float = 0.0  # before every answer
    lies: dict[str, Any] = field(default_factory=dict)  # path → body to answer with
    weights: str = ""  # the folder that was last reloaded, "" for what it started with
    weights_name: str = "default"
    is_paused: bool = False
    refuses_folders: set[str] = field(default_factory=set)  # whole models that it does not take
    offset_of: dict[str, float] = field(default_factory=dict)  # folder of a whole model → added to every log-prob
    tops: dict[int, list[float]] = field(default_factory=dict)  # last id of a prompt → log-probs of what may follow
    asked: list[dict[str, Any]] = field(default_factory=list)  # what completions were asked for
    texts: dict[int, str] = field(default_factory=dict)  # of tokens; others are spelled by their number

    def models(self) -> dict[str, Any]:
        base = {"id": self.base_model, "object": "model", "parent": None, "max_model_len": 2048}
        loras = [{"id": name, "object": "model", "parent": self.base_model} for name in self.adapters]
        return {"object": "list", "data": [base, *loras]}

    def restart(self) -> None:
        """Forget what a new process would not know."""
        self.adapters.clear()
        self.weights, self.weights_name, self.is_paused = "", "default", False

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Return status and body."""
        self.calls.append((path, str(body.get("lora_name") or body.get("model") or "")))
        if path == self.breaks:
            return 500, {"error": {"message": "out of memory"}}
        if path in self.lies:
            return 200, self.lies[path]
        handlers: dict[str, Callable[[dict[str, Any]], tuple[int, Any]]] = {
            "/v1/models": lambda _: (200, self.models()),
            "/v1/load_lora_adapter": self._load,
            "/v1/unload_lora_adapter": self._unload,
            "/v1/completions": self._complete,
            "/v1/chat/completions": self._chat,
            "/detokenize": self._detokenize,
            "/pause?mode=wait": lambda _: self._pause(is_paused=True),
            "/resume": lambda _: self._pause(is_paused=False),
            "/collective_rpc": self._reload,
            "/reset_prefix_cache?reset_running_requests=true": lambda _: (200, ""),
            "/update_weight_version": self._name_weights,
            "/weight_info": lambda _: (200, {"weight_version": self.weights_name}),
        }
        return handlers[path](body) if path in handlers else (404, {"detail": "Not Found"})

    def _load(self, body: dict[str, Any]) -> tuple[int, Any]:
        if self.refuses or not (Path(body["lora_path"]) / "adapter_config.json").exists():
            return 400, {"error": {"message": self.refuses or "no adapter there", "type": "BadRequestError"}}
        if body["lora_name"] in self.adapters:
            return 400, {"error": {"message": "has already been loaded"}}
        self.adapters[body["lora_name"]] = body["lora_path"]
        return 200, "Success"

    def _unload(self, body: dict[str, Any]) -> tuple[int, Any]:
        if self.adapters.pop(body["lora_name"], None) is None:
            return 404, {"error": {"message": "cannot be found"}}
        return 200, "Success"

    def _pause(self, *, is_paused: bool) -> tuple[int, Any]:
        self.is_paused = is_paused
        return 200, {"status": "paused" if is_paused else "resumed"}

    def _reload(self, body: dict[str, Any]) -> tuple[int, Any]:
        if not self.is_paused:
            return 400, {"error": {"message": "calls run"}}
        if body["kwargs"]["weights_path"] in self.refuses_folders:
            return 400, {"error": {"message": "shape mismatch"}}
        self.weights = body["kwargs"]["weights_path"]
        return 200, {"results": [None]}

    def _name_weights(self, body: dict[str, Any]) -> tuple[int, Any]:
        self.weights_name = body["new_version"]
        return 200, {"success": True}

    def _knows(self, name: str) -> bool:
        return name == self.base_model or name in self.adapters

    def _complete(self, body: dict[str, Any]) -> tuple[int, Any]:
        if not self._knows(body["model"]):
            return 404, {"error": {"message": "no such model"}}
        shift = self.offset if body["model"] in self.adapters else self.offset_of.get(self.weights, 0.0)
        self.asked.append(body)
        usual = [token_logprob(body["model"], token) + shift for token in range(body["logprobs"])]
        tops = [self.tops.get(prompt[-1], usual) for prompt in body["prompt"]]
        named = [{f"token_id:{token}": value for token, value in enumerate(top)} for top in tops]
        return 200, {
            "choices": [{"index": place, "logprobs": {"top_logprobs": [top]}} for place, top in enumerate(named)]
        }

    def _detokenize(self, body: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"prompt": "".join(self.texts.get(token, f"<{token}>") for token in body["tokens"])}

    def _chat(self, body: dict[str, Any]) -> tuple[int, Any]:
        if not self._knows(body["model"]):
            return 404, {"error": {"message": "no such model"}}
        choice = {"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
        return 200, {"choices": [choice], "usage": {"completion_tokens": 1}}


@contextmanager
def serve_engine(engine: FakeEngine, *, port: int = 0) -> Iterator[FakeEngine]:
    """Serve the engine on a port of this host until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _respond(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            time.sleep(engine.delay_s)
            status, answer = engine.answer(self.command, self.path, body)
            content = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with suppress(BrokenPipeError, ConnectionResetError):  # the caller lost patience
                self.wfile.write(content)

        do_GET = _respond  # noqa: N815
        do_POST = _respond  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            return

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    engine.base_url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield engine
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
