"""What the gateway costs: one instant stub engine, one load generator (wrk), one run, one machine.

    make bench-gateway            (or: python -m bench.gateway [--seconds N] [--no-peers] [--calls N])

Measured side by side: the stub alone, a bare Starlette pass-through, our gateway with durable capture to Postgres on
(one process, then two), LiteLLM's proxy and Portkey's gateway. Prints a table, the ratios that matter and, last, one
line `BENCH_GATEWAY {json}`. Needs wrk, and npm for Portkey; starts its own Postgres (fsync on) and Valkey.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from bench import peers
from bench.load import count_cpu_s, measure, measure_first_token_ms, measure_rss_mb, write_lua
from bench.services import answers, running, start_services, wait_for

ROOT = Path(__file__).resolve().parent.parent
SECRET = "sk-claw-bench"  # noqa: S105 (of a database that lives for a minute)
PORTS = {"stub": 8971, "pass-through": 8972, "gateway": 8973, "gateway x2": 8974, "litellm": 8975, "portkey": 8976}
STUB_URL = f"http://127.0.0.1:{PORTS['stub']}"
TITLES = "server         stream  KB  in flight    req/s   p50 ms   p99 ms  cpu ms  fail     MB"
N_FIRST_TOKENS = 200


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One measurement. `cpu_ms` is the server's own processor time a request, which a busy machine hardly disturbs."""

    server: str
    is_streamed: bool
    request_kb: int
    in_flight: int
    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    n_errors: int
    rss_mb: float


@dataclass(frozen=True, kw_only=True)
class Flatness:
    """The gateway's memory before and after many calls."""

    n_calls: int
    rss_before_mb: float
    rss_after_mb: float


def uvicorn(app: str, port: int, *flags: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "uvicorn",
        app,
        "--port",
        str(port),
        "--log-level",
        "warning",
        "--no-access-log",
        *flags,
    ]


def start_servers(stack: ExitStack, env: dict[str, str], *, folder: Path, with_peers: bool) -> dict[str, int]:
    """Start all that are measured; return their process ids by name."""
    door = "clawplatform.asgi:application"
    commands = {
        "stub": uvicorn("bench.gateway_parts:stub", PORTS["stub"]),
        "pass-through": uvicorn("bench.gateway_parts:pass_through", PORTS["pass-through"]),
        "gateway": uvicorn(door, PORTS["gateway"]),
        "gateway x2": uvicorn(door, PORTS["gateway x2"], "--workers", "2"),
    }
    envs: dict[str, dict[str, str]] = {}
    if with_peers:
        home = ROOT / "var" / "bench"
        peers.install_peers(home)
        found = {
            "litellm": peers.litellm(home, port=PORTS["litellm"], stub_url=STUB_URL, secret=SECRET),
            "portkey": peers.portkey(home, port=PORTS["portkey"]),
        }
        commands |= {name: list(peer.command) for name, peer in found.items()}
        envs = {name: dict(os.environ) | peer.env for name, peer in found.items()}  # LiteLLM would use DATABASE_URL
    pids = {}
    for name, command in commands.items():
        log = folder / f"{name}.log"
        pids[name] = stack.enter_context(running(*command, env=envs.get(name, env), log=log))
        wait_for(name, partial(answers, f"http://127.0.0.1:{PORTS[name]}/healthz"))
    return pids


def run_cells(folder: Path, pids: dict[str, int], *, seconds: int) -> Iterator[Cell]:
    for is_streamed in (False, True):
        for request_kb in (1, 60):
            headers = {"Authorization": f"Bearer {SECRET}", **peers.portkey_headers(STUB_URL)}
            lua = write_lua(folder, headers=headers, is_streamed=is_streamed, request_kb=request_kb)
            for in_flight in (1, 32):
                for server, pid in pids.items():
                    measure(PORTS[server], lua, in_flight=in_flight, seconds=1)
                    used_s = count_cpu_s(pid)
                    load = measure(PORTS[server], lua, in_flight=in_flight, seconds=seconds)
                    used_s = count_cpu_s(pid) - used_s
                    yield Cell(
                        server=server,
                        is_streamed=is_streamed,
                        request_kb=request_kb,
                        in_flight=in_flight,
                        per_s=round(load.per_s, 1),
                        p50_ms=round(load.p50_ms, 3),
                        p99_ms=round(load.p99_ms, 3),
                        cpu_ms=round(1000 * used_s / max(1, load.per_s * seconds), 3),
                        n_errors=load.n_errors,
                        rss_mb=round(measure_rss_mb(pid), 1),
                    )


def render_cell(cell: Cell) -> str:
    return (
        f"{cell.server:13}{cell.is_streamed!s:>8}{cell.request_kb:>4}{cell.in_flight:>11}{cell.per_s:>9}"
        f"{cell.p50_ms:>9}{cell.p99_ms:>9}{cell.cpu_ms:>8}{cell.n_errors:>6}{cell.rss_mb:>7}"
    )


def measure_flatness(folder: Path, pid: int, *, n_calls: int) -> Flatness:
    """Make many calls, 32 in flight; the first tenth only warms the process up."""
    lua = write_lua(folder, headers={"Authorization": f"Bearer {SECRET}"}, is_streamed=False, request_kb=1)
    made, before = 0.0, 0.0
    while made < n_calls * 1.1:
        made += 5 * measure(PORTS["gateway"], lua, in_flight=32, seconds=5).per_s
        if not before and made >= n_calls * 0.1:
            before = measure_rss_mb(pid)
    return Flatness(n_calls=int(made), rss_before_mb=round(before, 1), rss_after_mb=round(measure_rss_mb(pid), 1))


def compare(cells: list[Cell], first_tokens: dict[str, float | None]) -> dict[str, float]:
    """Return the ratios and differences that the gateway is held to, the worst over the cells."""
    by_key = {(cell.server, cell.is_streamed, cell.request_kb, cell.in_flight): cell for cell in cells}

    def worst_ratio(server: str, other: str, in_flight: int) -> float:
        pairs = [(by_key[server, *key, in_flight], by_key[other, *key, in_flight]) for key in _KINDS]
        return round(min(one.per_s / two.per_s for one, two in pairs if two.per_s), 2)

    ours, bare = "gateway", "pass-through"
    found = {
        "req/s of the pass-through's, 32 in flight": worst_ratio(ours, bare, 32),
        "added p50 ms alone": round(
            max(by_key[ours, *key, 1].p50_ms - by_key[bare, *key, 1].p50_ms for key in _KINDS), 3
        ),
        "added ms to the first token": round((first_tokens[ours] or math.inf) - (first_tokens[bare] or 0), 3),
        "req/s of two processes to one's": worst_ratio("gateway x2", ours, 32),
    }
    found |= {
        f"req/s to {peer}'s, 32 in flight": worst_ratio(ours, peer, 32) for peer in first_tokens if peer in _PEERS
    }
    return found


_KINDS = [(is_streamed, request_kb) for is_streamed in (False, True) for request_kb in (1, 60)]
_PEERS = ("litellm", "portkey")


def run(options: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
    """Start everything, measure, print."""
    env = start_services(folder, stack) | {"STUB_URL": STUB_URL}
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], env=env, check=True)
    subprocess.run([sys.executable, "-m", "bench.gateway_parts", SECRET], env=env, check=True)
    pids = start_servers(stack, env, folder=folder, with_peers=options.peers)
    time.sleep(1)
    print(TITLES)
    cells = []
    for cell in run_cells(folder, pids, seconds=options.seconds):
        cells.append(cell)
        print(render_cell(cell), flush=True)
    headers = {"Authorization": f"Bearer {SECRET}", **peers.portkey_headers(STUB_URL)}
    first_tokens = {name: measure_first_token_ms(PORTS[name], headers=headers, n=N_FIRST_TOKENS) for name in pids}
    print(
        "time to first token, ms (median): "
        + ", ".join(f"{name} {ms:.3f}" if ms else f"{name} fails" for name, ms in first_tokens.items())
    )
    flatness = measure_flatness(folder, pids["gateway"], n_calls=options.calls)
    print(f"memory: {flatness.rss_before_mb} MB, after {flatness.n_calls} more calls {flatness.rss_after_mb} MB")
    ratios = compare(cells, first_tokens)
    for what, value in ratios.items():
        print(f"{value:>8}  {what}")
    report = {
        "cells": [asdict(cell) for cell in cells],
        "first_token_ms": first_tokens,
        "flatness": asdict(flatness),
        "ratios": ratios,
    }
    print(f"BENCH_GATEWAY {json.dumps(report)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    parser.add_argument("--seconds", type=int, default=4, help="of each measurement")
    parser.add_argument("--calls", type=int, default=100_000, help="over which memory is to stay flat")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="leave LiteLLM and Portkey out")
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed: on Debian and Ubuntu, apt-get install wrk")
    folder = Path(tempfile.mkdtemp(prefix="claw-bench-")).resolve()
    folder.chmod(0o711)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        run(options, folder, stack)


if __name__ == "__main__":
    main()
