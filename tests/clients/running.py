"""Runs a client as its user would: a process of its own, an empty home, and nothing of ours in its environment."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.clients.conftest import MODEL
from tests.clients.engine import TURNS
from tests.clients.gateway import GatewayProcess

DRIVERS = Path(__file__).parent / "drivers"
TIMEOUT_S = 240
_QUIET = {
    "DO_NOT_TRACK": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "NO_UPDATE_NOTIFIER": "1",
    "NO_COLOR": "1",
    "TERM": "dumb",
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a client lives during one test."""

    home: Path
    work: Path
    env: Mapping[str, str]

    @classmethod
    def make(cls, folder: Path, *, env: Mapping[str, str], path: str = "") -> "Place":
        """Make a home and a working folder. `path` comes before the machine's own programs."""
        home, work = folder / "home", folder / "work"
        home.mkdir(parents=True)
        work.mkdir()
        base = {"HOME": str(home), "PATH": os.pathsep.join(filter(None, (path, os.environ["PATH"]))), **_QUIET}
        return cls(home=home, work=work, env=base | dict(env))

    def run(self, command: Sequence[str | Path], *, timeout_s: float = TIMEOUT_S) -> str:
        """Run it to its end and return what it printed; it must succeed."""
        done = subprocess.run(
            command,
            cwd=self.work,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout


def name_gateway(gateway: GatewayProcess) -> dict[str, str]:
    """Return the variables that our Python drivers read."""
    return {"CLAW_URL": gateway.url, "CLAW_API_KEY": gateway.secret, "CLAW_AGENT_MODEL": MODEL}


def run_driver(
    name: str,
    *arguments: str,
    gateway: GatewayProcess,
    folder: Path,
    python: Path | str = sys.executable,
    turns: Sequence[str] = TURNS,
    timeout_s: float = TIMEOUT_S,
) -> str:
    """Run one of `drivers/` over the turns and return what it printed."""
    place = Place.make(folder, env=name_gateway(gateway))
    return place.run([python, DRIVERS / f"{name}.py", *arguments, *turns], timeout_s=timeout_s)
