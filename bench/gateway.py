"""What the gateway costs: one instant stub engine, one load generator (wrk), one run, one machine.

    make bench-gateway            (or: python -m bench.gateway [--rounds N] [--seconds N] [--no-peers] [--calls N])
    make bench-gateway ARGS="--memory"     only: does memory stay flat over --calls calls?

Measured in turns (see `bench.rounds`): the stub alone, a bare Starlette pass-through, one that keeps, our gateway with
durable capture to Postgres on (one process, then two), LiteLLM's proxy and Portkey's gateway. Requests are those of
conversations that go on, sixteen calls each, many side by side; the size is their middle. The pass-through calls the
stub by aiohttp, the faster of the usual two client libraries. The keeping one is the pass-through and a table: it
commits both bodies, packed, those of all calls in flight at once, before it answers: the least that any gateway must
do that loses nothing. Prints a table, what a write to this disk takes (a commit waits
for one), the ratios that matter and, last, one line `BENCH_GATEWAY {json}`. Needs wrk, and npm for Portkey; starts its
own Postgres (fsync on) and Valkey.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bench import peers
from bench.load import write_lua
from bench.rounds import (
    TITLES,
    Cell,
    Kind,
    Server,
    compare,
    divide_rates,
    measure_first_tokens,
    measure_kind,
    subtract_p50,
    watch_memory,
)
from bench.services import answers, measure_fsync_ms, running, start_services, wait_for
from worker.host.programs import read_procfile

ROOT = Path(__file__).resolve().parent.parent
SECRET = "sk-claw-bench"  # noqa: S105 (of a database that lives for a minute)
NAMES = ("stub", "pass-through", "keeping", "gateway", "gateway x2", "litellm", "portkey")
PORTS = {name: 8971 + place for place, name in enumerate(NAMES)}
STUB_URL = f"http://127.0.0.1:{PORTS['stub']}"
PEERS = ("litellm", "portkey")
KINDS = [
    Kind(is_streamed=is_streamed, request_kb=request_kb, in_flight=in_flight)
    for is_streamed in (False, True)
    for request_kb in (1, 60)
    for in_flight in (1, 32)
]
N_FIRST_TOKENS = 100  # a round


def uvicorn(app: str, port: int) -> list[str]:
    """Return the command of a bare server."""
    return [sys.executable, "-m", "uvicorn", app, "--port", str(port), "--log-level", "warning", "--no-access-log"]


def door(port: int, *flags: str) -> list[str]:
    """Return the command of the gateway, as the Procfile has it."""
    variables = defaultdict(str, CLAW_HOST="127.0.0.1", CLAW_PORT=str(port))
    programs = {program.name: program for program in read_procfile(ROOT / "Procfile", variables=variables)}
    return [sys.executable, "-m", *programs["web"].command, "--log-level", "warning", *flags]


def start_servers(stack: ExitStack, env: dict[str, str], *, folder: Path, names: list[str]) -> list[Server]:
    """Start those that are measured."""
    commands = {
        "stub": uvicorn("bench.gateway_parts:stub", PORTS["stub"]),
        "pass-through": uvicorn("bench.gateway_parts:pass_through", PORTS["pass-through"]),
        "keeping": uvicorn("bench.gateway_parts:keeping", PORTS["keeping"]),
        "gateway": door(PORTS["gateway"]),
        "gateway x2": door(PORTS["gateway x2"], "--workers", "2"),
    }
    envs: dict[str, dict[str, str]] = {}
    if set(names) & set(PEERS):
        home = ROOT / "var" / "bench"
        peers.install_peers(home)
        found = {
            "litellm": peers.litellm(home, port=PORTS["litellm"], stub_url=STUB_URL, secret=SECRET),
            "portkey": peers.portkey(home, port=PORTS["portkey"]),
        }
        commands |= {name: list(peer.command) for name, peer in found.items()}
        envs = {name: dict(os.environ) | peer.env for name, peer in found.items()}  # LiteLLM would use DATABASE_URL
    servers = []
    for name in names:
        log = folder / f"{name}.log"
        pid = stack.enter_context(running(*commands[name], env=envs.get(name, env), log=log))
        wait_for(name, partial(answers, f"http://127.0.0.1:{PORTS[name]}/healthz"))
        servers.append(Server(name=name, port=PORTS[name], pid=pid))
    return servers


def start_world(stack: ExitStack, *, folder: Path, names: list[str]) -> list[Server]:
    """Start the services, fill the database and start the servers."""
    env = start_services(folder, stack) | {"STUB_URL": STUB_URL}
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], env=env, check=True)
    subprocess.run([sys.executable, "-m", "bench.gateway_parts", SECRET], env=env, check=True)
    servers = start_servers(stack, env, folder=folder, names=names)
    time.sleep(1)
    return servers


def find_ratios(cells: list[Cell], first_tokens: dict[int, dict[str, float | None]]) -> dict[str, float]:
    """Return what the gateway is held to, for each kind of request."""
    by_key = {(cell.server, cell.kind): cell for cell in cells}
    names = {cell.server for cell in cells}
    found: dict[str, float] = {}
    for kind in KINDS:
        ours, bare = by_key["gateway", kind], by_key["pass-through", kind]
        if kind.in_flight == 1:
            found[f"added p50 ms ({kind})"] = compare(ours, bare, subtract_p50)
            continue
        found[f"req/s to the pass-through's ({kind})"] = compare(ours, bare, divide_rates)
        found[f"req/s to the keeping one's ({kind})"] = compare(ours, by_key["keeping", kind], divide_rates)
        found[f"req/s of two processes to one's ({kind})"] = compare(by_key["gateway x2", kind], ours, divide_rates)
        for peer in names.intersection(PEERS):
            found[f"req/s to {peer}'s ({kind})"] = compare(ours, by_key[peer, kind], divide_rates)
    for request_kb, times in first_tokens.items():
        if (mine := times["gateway"]) is not None and (other := times["pass-through"]) is not None:
            found[f"added ms to the first token ({request_kb} KB)"] = round(mine - other, 3)
    return found


def measure_memory(server: Server, *, folder: Path, n_calls: int) -> list[tuple[int, float]]:
    """Print and return the gateway's memory in the course of many small calls."""
    looks: list[tuple[int, float]] = []
    lua = write_lua(folder, headers={"Authorization": f"Bearer {SECRET}"}, is_streamed=False, request_kb=1)
    for n_made, rss_mb in watch_memory(server, lua, n_calls=n_calls):
        looks.append((n_made, rss_mb))
        print(f"memory: {rss_mb:7.1f} MB after {n_made:>7} calls", flush=True)
    return looks


def run_all(options: argparse.Namespace, folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Measure everything; print as it comes, return the report."""
    names = [name for name in PORTS if options.peers or name not in PEERS]
    servers = start_world(stack, folder=folder, names=names)
    headers = {"Authorization": f"Bearer {SECRET}", **peers.portkey_headers(STUB_URL)}
    cells: list[Cell] = []
    print(TITLES)
    for kind in KINDS:
        found = measure_kind(
            servers, kind, folder=folder, headers=headers, n_rounds=options.rounds, seconds=options.seconds
        )
        print(*found, sep="\n", flush=True)
        cells += found
    first_tokens = {
        request_kb: measure_first_tokens(
            servers, headers=headers, request_kb=request_kb, n_rounds=options.rounds, n_calls=N_FIRST_TOKENS
        )
        for request_kb in (1, 60)
    }
    for request_kb, times in first_tokens.items():
        said = ", ".join(f"{name} {ms:.3f}" if ms else f"{name} fails" for name, ms in times.items())
        print(f"time to first token, ms (median, {request_kb} KB): {said}")
    fsync_ms = measure_fsync_ms(folder)
    print(f"8 KB on disk, ms (median): {fsync_ms}")
    gateway = next(server for server in servers if server.name == "gateway")
    looks = measure_memory(gateway, folder=folder, n_calls=options.calls)
    ratios = find_ratios(cells, first_tokens)
    for what, value in ratios.items():
        print(f"{value:>8}  {what}")
    return {
        "cells": [cell.figures() for cell in cells],
        "first_token_ms": first_tokens,
        "fsync_ms": fsync_ms,
        "memory": looks,
        "ratios": ratios,
    }


def run_memory(options: argparse.Namespace, folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Measure the gateway's memory alone."""
    servers = start_world(stack, folder=folder, names=["stub", "gateway"])
    return {"memory": measure_memory(servers[1], folder=folder, n_calls=options.calls)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="in which each server has its turn")
    parser.add_argument("--seconds", type=int, default=2, help="of each turn")
    parser.add_argument("--calls", type=int, default=100_000, help="over which memory is to stay flat")
    parser.add_argument("--memory", action="store_true", help="measure only that")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="leave LiteLLM and Portkey out")
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed: on Debian and Ubuntu, apt-get install wrk")
    folder = Path(tempfile.mkdtemp(prefix="claw-bench-")).resolve()
    folder.chmod(0o711)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        report = (run_memory if options.memory else run_all)(options, folder, stack)
    print(f"BENCH_GATEWAY {json.dumps(report)}")


if __name__ == "__main__":
    main()
