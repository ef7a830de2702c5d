"""How long the server takes for the console's pages over a large pool.

    make bench-console            (or: python -m bench.console [--trajectories N] [--steps N] [--folder PATH])

Each page is asked for in the process, signed in as an owner, with every middleware; the time is the server's, without
the network. The pool is made up (`manage.py seed_pool`), with one trajectory of 5,000 steps whose messages have 100 KB.
Prints a table and, last, one line `BENCH_CONSOLE {json}`: milliseconds for each page. Starts its own Postgres and
Valkey; with `--folder` they keep what they have there, and a pool that was begun is gone on with: a million
trajectories take a quarter of an hour and 25 GB.
"""

import argparse
import json
import shutil
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psutil

from bench.recorder import set_up
from bench.services import start_services

if TYPE_CHECKING:
    from django.test import Client

N_LONG, LONG_MESSAGE = 5000, 100_000
N_TIMES = 30


@dataclass(frozen=True, kw_only=True)
class Times:
    """Milliseconds of the server. `processor`: what it and Postgres' own process for it worked, in the mean; a busy
    machine makes the others longer than that."""

    page: str
    median: float
    p95: float
    processor: float


def fill(n_trajectories: int, n_steps: int) -> Any:
    """Make the pool; return its project."""
    from django.core.management import call_command  # noqa: PLC0415
    from django.db import connection  # noqa: PLC0415

    from apps.accounts.models import Project  # noqa: PLC0415
    from apps.trajectories.models import Trajectory  # noqa: PLC0415
    from tests.factories.accounts import ProjectFactory  # noqa: PLC0415

    project = Project.objects.filter(slug="bench").first() or ProjectFactory.create(slug="bench")
    last = f"seed-{n_trajectories - 1:09d}"
    if not Trajectory.objects.filter(project=project, session_key=last).order_by("-id")[:2000].exists():
        arguments = ("--trajectories", str(n_trajectories), "--steps", str(n_steps))
        call_command("seed_pool", "--project", project.slug, *arguments)
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE")
    return project


def make_long_trajectory(project: Any) -> Any:
    """Make the trajectory of 5,000 steps; return it."""
    from django.utils import timezone  # noqa: PLC0415

    from apps.trajectories.models import Step, Trajectory  # noqa: PLC0415
    from tests.factories.trajectories import StepFactory, TrajectoryFactory  # noqa: PLC0415

    made = Trajectory.objects.filter(project=project, n_steps=N_LONG).first()
    if made is not None:
        return made
    agent = Trajectory.objects.filter(project=project)[0].agent
    trajectory = TrajectoryFactory.create(agent=agent, n_steps=N_LONG, title="Five thousand steps")
    text = "What stands in a long file that the agent has read. " * (LONG_MESSAGE // 52)
    message = [{"role": "user", "content": text}]
    start, parent = timezone.now() - timedelta(days=1), None
    for first in range(0, N_LONG, 200):
        steps = []
        for index in range(first, first + 200):
            at = start + timedelta(seconds=index)
            steps.append(
                StepFactory.build(
                    trajectory=trajectory, index=index, parent=parent, messages=message, started_at=at, ended_at=at
                )
            )
            steps[-1].shared_messages = 2 * index
            parent = steps[-1]
        Step.objects.bulk_create(steps)
    return trajectory


def sign_in(project: Any) -> "Client":
    from django.test import Client  # noqa: PLC0415

    from tests.factories.accounts import MembershipFactory  # noqa: PLC0415

    client = Client(SERVER_NAME="localhost")
    member = project.team.memberships.first() or MembershipFactory.create(team=project.team)
    client.force_login(member.user)
    return client


def list_pages(project: Any, long: Any) -> dict[str, str]:
    """Return the pages by name."""
    from apps.trajectories.models import Trajectory  # noqa: PLC0415

    base = f"/p/{project.slug}"
    ids = Trajectory.objects.filter(project=project).order_by("id")
    some = ids[1000].pk if ids[1000:1001] else ids[0].pk
    slug = long.agent.slug
    searches = {
        "agent": f"agent:{slug}",
        "reward": "reward<-0.9",
        "several": f"agent:{slug} reward>0.5 has:error",
        "word": '"refund parcel"',
        "frequent word": "refund",
        "a case's number": f"{1000:09d}",
        "without a word": "-refund",
        "nothing found": '"nobodysaidthis"',
        "tag": 'tag:"batch 3"',
        "label": "label:none reward:any",
        "broken prefix": "break:edit",
        "side calls": "has:side -break:any",
        "old": "to:2026-01-10 refund",
        "many terms": 'channel:train label:human turns>5 -has:error from:2026-01-01 "order" -parcel',
        "nothing, slowly": "reward>0.999 refund -order",
    }
    lists = {f"search: {name}": f"{base}/trajectories?q={quote(q)}" for name, q in searches.items()}
    return {
        "list": f"{base}/trajectories",
        "list, deep": f"{base}/trajectories?before={some}",
        **lists,
        "trajectory": f"{base}/trajectories/{some}",
        "trajectory, tokens": f"{base}/trajectories/{some}?step=0&view=tokens",
        "trajectory, long": f"{base}/trajectories/{long.pk}",
        "trajectory, long, middle": f"{base}/trajectories/{long.pk}?from=2500",
        "agent": f"{base}/agents/{slug}",
        "agents": f"{base}/agents",
        "home": f"{base}/",
        "inbox": f"{base}/inbox",
        "inbox, side calls": f"{base}/inbox?kind=side",
        "datasets": f"{base}/datasets",
        "jobs": f"{base}/jobs",
        "exports": f"{base}/exports",
        "imports": f"{base}/imports",
    }


def measure(client: "Client", name: str, address: str) -> Times:
    from django.db import connection  # noqa: PLC0415

    connection.ensure_connection()
    postgres = psutil.Process(connection.connection.info.backend_pid)
    taken, worked = [], 0.0
    for place in range(N_TIMES + 1):
        if place == 1:  # the first one compiles templates
            worked = _read_worked(postgres)
        start = time.perf_counter()
        status = client.get(address).status_code
        taken.append(1000 * (time.perf_counter() - start))
        if status != 200:
            raise SystemExit(f"{address} answers {status}")
    worked = 1000 * (_read_worked(postgres) - worked) / N_TIMES
    taken = sorted(taken[1:])
    p95 = taken[int(len(taken) * 0.95)]
    return Times(page=name, median=round(taken[len(taken) // 2], 1), p95=round(p95, 1), processor=round(worked, 1))


def _read_worked(postgres: psutil.Process) -> float:
    """Return the seconds of processor time of this process and of Postgres' for it."""
    times = postgres.cpu_times()
    return time.process_time() + times.user + times.system


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.console", description=__doc__)
    parser.add_argument("--trajectories", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=10, help="of each trajectory")
    parser.add_argument("--folder", type=Path, help="keep the pool here, and go on with one that is there")
    options = parser.parse_args()
    folder = Path(options.folder or tempfile.mkdtemp(prefix="claw-bench-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o711)
    with ExitStack() as stack:
        if options.folder is None:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        set_up(start_services(folder, stack))
        project = fill(options.trajectories, options.steps)
        long = make_long_trajectory(project)
        client = sign_in(project)
        print(f"{'page':28}{'median ms':>10}{'p95 ms':>9}{'processor ms':>14}")
        results = []
        for name, address in list_pages(project, long).items():
            results.append(measure(client, name, address))
            shown = results[-1]
            print(f"{name:28}{shown.median:>10}{shown.p95:>9}{shown.processor:>14}", flush=True)
        pool = {"n_trajectories": options.trajectories, "n_steps": options.steps}
        print(f"BENCH_CONSOLE {json.dumps({**pool, 'pages': [asdict(result) for result in results]})}")


if __name__ == "__main__":
    main()
