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
MARK = "{conversation}"  # in a request: what tells its conversation from others
N_TURNS = 16
LUA = """
wrk.method = "POST"
{headers}
local turns = {{turns}}  -- of each the pieces between which the conversation's name stands
local began, n_calls, n_lanes = os.time(), 0, 32
request = function()
  local round = math.floor(n_calls / n_lanes)
  local name = began .. "-" .. (math.floor(round / #turns) * n_lanes + n_calls % n_lanes)
  n_calls = n_calls + 1
  return wrk.format(nil, nil, nil, table.concat(turns[round % #turns + 1], name))
end
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


def make_turns(*, is_streamed: bool, request_kb: int) -> list[str]:
    """Return the requests of an agent's conversation, of about that size: each says what the one before it said and a
    little more. Their text is the platform's own pages: one word again and again would be packed as no agent's is.
    """
    n_bytes = request_kb * 1024
    pages = "".join(path.read_text() for path in sorted((ROOT / "docs").rglob("*.md")))
    text = pages * (2 + n_bytes // len(pages))
    n_system, n_more = n_bytes * 3 // 4, n_bytes // 2 // N_TURNS
    messages = [{"role": "system", "content": f"This is {MARK}. {text[:n_system]}"}]
    turns = []
    for at in range(n_system, n_system + N_TURNS * n_more, n_more):
        messages.append({"role": "user", "content": text[at : at + n_more]})
        turns.append(json.dumps({"model": "bench", "stream": is_streamed, "messages": messages}))
        messages.append({"role": "assistant", "content": "OK"})
    return turns


def write_lua(folder: Path, *, headers: dict[str, str], is_streamed: bool, request_kb: int) -> Path:
    """Return wrk's script for such requests."""
    path = folder / f"{is_streamed}-{request_kb}-{len(headers)}.lua"
    return write_lua_of(path, headers=headers, turns=make_turns(is_streamed=is_streamed, request_kb=request_kb))


def write_lua_of(path: Path, *, headers: dict[str, str], turns: list[str]) -> Path:
    """Return wrk's script for conversations of these requests, many side by side and none of them twice. MARK stands
    in them for what tells one from the others.
    """
    all_headers = {"Content-Type": "application/json", **headers}
    lines = "\n".join(f"wrk.headers[{json.dumps(name)}] = {json.dumps(value)}" for name, value in all_headers.items())
    pieces = [", ".join(f"[==[{piece}]==]" for piece in turn.split(MARK)) for turn in turns]
    spelled = ", ".join(f"{{{piece}}}" for piece in pieces)
    path.write_text(LUA.replace("{headers}", lines).replace("{turns}", spelled))
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
    body = make_turns(is_streamed=True, request_kb=request_kb)[N_TURNS // 2].encode()
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
