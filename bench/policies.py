"""What limits and redaction add to a call, and whether memory stays flat under them.

    python -m bench.policies [--seconds N] [--calls N]

One gateway as the Procfile starts it, one instant stub engine, a key for each policy. Prints a table and, last, a line
`BENCH_POLICIES {json}`. Needs wrk; starts its own Postgres (fsync on) and Valkey.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.gateway import door, uvicorn
from bench.load import measure, measure_rss_mb, write_lua
from bench.services import answers, running, start_services, wait_for

STUB, GATEWAY = 8977, 8978
KEYS = ("plain", "limited", "limited thrice", "redacting", "passing through")
MANY = 10**9
LIMITS = {"requests_per_minute": MANY, "tokens_per_minute": MANY, "max_in_flight": MANY, "tokens_per_day": MANY}


def make_rows() -> None:
    """A team with a project, the model and a key for each policy; the stub as the engine of all."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clawplatform.settings")
    import django  # noqa: PLC0415 (the parent needs none of it)

    django.setup()
    from apps.accounts.models import CaptureMode  # noqa: PLC0415
    from apps.accounts.services import set_capture, set_limits  # noqa: PLC0415
    from tests.factories.accounts import ApiKeyFactory  # noqa: PLC0415
    from tests.factories.registry import AliasFactory, EngineFactory, VersionFactory  # noqa: PLC0415

    keys = {}
    for name in KEYS:
        keys[name] = ApiKeyFactory.create(secret=secret_of(name))
        project = keys[name].agent.project
        AliasFactory.create(version=VersionFactory.create(policy__project=project, policy__slug="bench"))
    EngineFactory.create(base_url=os.environ["STUB_URL"])
    thrice = keys["limited thrice"].agent.project
    for target in (keys["limited"], keys["limited thrice"], thrice, thrice.team):
        set_limits(target, limits=LIMITS, actor="bench")
    set_capture(agent=keys["redacting"].agent, actor="bench", mode=CaptureMode.REDACT)
    set_capture(agent=keys["passing through"].agent, actor="bench", mode=CaptureMode.OFF)


def secret_of(name: str) -> str:
    return f"claw-bench-{name.replace(' ', '-')}"


def measure_all(folder: Path, *, seconds: int) -> list[dict[str, object]]:
    """Measure each key, one and 32 calls in flight, small and large requests."""
    rows: list[dict[str, object]] = []
    for request_kb in (1, 60):
        for in_flight in (1, 32):
            for name in KEYS:
                home = folder / name.replace(" ", "-")
                home.mkdir(exist_ok=True)
                headers = {"Authorization": f"Bearer {secret_of(name)}"}
                lua = write_lua(home, headers=headers, is_streamed=False, request_kb=request_kb)
                measure(GATEWAY, lua, in_flight=in_flight, seconds=1)
                load = measure(GATEWAY, lua, in_flight=in_flight, seconds=seconds)
                rows.append({"key": name, "kb": request_kb, "in_flight": in_flight, **vars(load)})
                print(
                    f"{name:16}{request_kb:>4}{in_flight:>11}{load.per_s:>9.1f}{load.p50_ms:>9.3f}{load.p99_ms:>9.3f}"
                    f"{load.n_errors:>6}",
                    flush=True,
                )
    return rows


def measure_flatness(folder: Path, pid: int, *, n_calls: int) -> dict[str, float]:
    """Make many calls of the limited and of the redacting key in turns; the first tenth only warms the process up."""
    scripts = []
    for name in ("limited thrice", "redacting"):
        headers = {"Authorization": f"Bearer {secret_of(name)}"}
        scripts.append(write_lua(folder / name.replace(" ", "-"), headers=headers, is_streamed=True, request_kb=1))
    made, before = 0.0, 0.0
    while made < n_calls * 1.1:
        made += sum(3 * measure(GATEWAY, lua, in_flight=32, seconds=3).per_s for lua in scripts)
        if not before and made >= n_calls * 0.1:
            before = measure_rss_mb(pid)
    return {"n_calls": int(made), "rss_before_mb": round(before, 1), "rss_after_mb": round(measure_rss_mb(pid), 1)}


def run(options: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
    """Start everything, measure, print."""
    env = start_services(folder, stack) | {"STUB_URL": f"http://127.0.0.1:{STUB}"}
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], env=env, check=True)
    subprocess.run([sys.executable, "-m", "bench.policies", "--rows"], env=env, check=True)
    pids = []
    for command, port in ((uvicorn("bench.gateway_parts:stub", STUB), STUB), (door(GATEWAY), GATEWAY)):
        pids.append(stack.enter_context(running(*command, env=env, log=folder / f"{port}.log")))
        wait_for(str(port), partial(answers, f"http://127.0.0.1:{port}/healthz"))
    print("key               KB  in flight    req/s   p50 ms   p99 ms  fail")
    rows = measure_all(folder, seconds=options.seconds)
    flatness = measure_flatness(folder, pids[1], n_calls=options.calls)
    print(f"memory: {flatness}")
    print(f"BENCH_POLICIES {json.dumps({'cells': rows, 'flatness': flatness})}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.policies", description=__doc__)
    parser.add_argument("--seconds", type=int, default=3, help="of each measurement")
    parser.add_argument("--calls", type=int, default=20_000, help="over which memory is to stay flat")
    parser.add_argument("--rows", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rows:
        return make_rows()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed: on Debian and Ubuntu, apt-get install wrk")
    folder = Path(tempfile.mkdtemp(prefix="claw-bench-")).resolve()
    folder.chmod(0o711)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return run(options, folder, stack)


if __name__ == "__main__":
    main()
