"""Loads a server that speaks chat completions and measures it: wrk for rates, a bare socket for the first token."""

import json
import re
import socket
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
PATH = "/v1/chat/completions"
LUA = """
wrk.method = "POST"
{headers}
wrk.body = [==[{body}]==]
done = function(summary, latency, requests)
  io.write(string.format("RESULT %f %f %f %d\\n", summary.requests / (summary.duration / 1e6),
    latency:percentile(50) / 1000, latency:percentile(99) / 1000,
    summary.errors.status + summary.errors.read + summary.errors.timeout + summary.errors.connect))
end
"""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What wrk saw."""

    per_s: float
    p50_ms: float
    p99_ms: float
    n_errors: int


def make_body(*, is_streamed: bool, request_kb: int) -> str:
    """Return a chat request of about that size, its text the platform's own pages: one word again and again would be
    packed by Postgres as no agent's prompt is.
    """
    pages = "".join(path.read_text() for path in sorted((ROOT / "docs").rglob("*.md")))
    text = (pages * (1 + request_kb * 1024 // len(pages)))[: request_kb * 1024]
    return json.dumps({"model": "bench", "stream": is_streamed, "messages": [{"role": "user", "content": text}]})


def write_lua(folder: Path, *, headers: dict[str, str], is_streamed: bool, request_kb: int) -> Path:
    """Return wrk's script for such requests."""
    path = folder / f"{is_streamed}-{request_kb}-{len(headers)}.lua"
    return write_lua_of(path, headers=headers, body=make_body(is_streamed=is_streamed, request_kb=request_kb))


def write_lua_of(path: Path, *, headers: dict[str, str], body: str) -> Path:
    """Return wrk's script for requests with this body."""
    all_headers = {"Content-Type": "application/json", **headers}
    lines = "\n".join(f"wrk.headers[{json.dumps(name)}] = {json.dumps(value)}" for name, value in all_headers.items())
    path.write_text(LUA.replace("{headers}", lines).replace("{body}", body))
    return path


def measure(port: int, lua: Path, *, in_flight: int, seconds: int) -> Load:
    """Load the server for so many seconds."""
    url = f"http://127.0.0.1:{port}{PATH}"
    command = ["wrk", "-t1", f"-c{in_flight}", f"-d{seconds}s", "--timeout", "10s", "-s", str(lua), url]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"RESULT (\S+) (\S+) (\S+) (\d+)", out)
    if found is None:
        raise SystemExit(f"wrk said:\n{out}")
    return Load(per_s=float(found[1]), p50_ms=float(found[2]), p99_ms=float(found[3]), n_errors=int(found[4]))


def measure_first_token_ms(port: int, *, headers: dict[str, str], n: int, request_kb: int) -> float | None:
    """Return the median time until the first event of a streamed answer, one call at a time; None if it gives none."""
    body = make_body(is_streamed=True, request_kb=request_kb).encode()
    lines = [f"POST {PATH} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(body)}", *(f"{name}: {value}" for name, value in headers.items())]
    request = "\r\n".join([*lines, "", ""]).encode() + body
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times_s: list[float] = []
        for _ in range(n):
            time_s = _time_first_event(connection, request)
            if time_s is None:
                return None
            times_s.append(time_s)
    return 1000 * statistics.median(times_s)


def _time_first_event(connection: socket.socket, request: bytes) -> float | None:
    began, first_at, seen = time.perf_counter(), 0.0, b""
    connection.sendall(request)
    while not seen.endswith(b"0\r\n\r\n"):  # the last chunk of a chunked body
        data = connection.recv(1 << 16)
        seen += data
        if not data or not seen.startswith(b"HTTP/1.1 200"):
            return None
        if not first_at and b"data:" in seen:
            first_at = time.perf_counter()
    return first_at - began


def count_cpu_s(pid: int) -> float:
    """Return the processor time that a server and its children have used."""
    return sum(process.cpu_times().user + process.cpu_times().system for process in _family(pid))


def measure_rss_mb(pid: int) -> float:
    """Return the resident memory of a server and its children, in MB."""
    return sum(process.memory_info().rss for process in _family(pid)) / 2**20


def _family(pid: int) -> list[psutil.Process]:
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]
