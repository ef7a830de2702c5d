"""The gateways that ours is measured against, each installed by its own package manager into a folder of the bench.

They get what their documentation calls for: one process, their own key check where they have one, no record of calls.
"""

import os
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path

LITELLM = "litellm[proxy]==1.108.7"
PORTKEY = "@portkey-ai/gateway@1.15.2"
LITELLM_CONFIG = """
model_list:
  - model_name: bench
    litellm_params: {{model: openai/bench, api_base: "{stub}/v1", api_key: x}}
general_settings: {{master_key: "{secret}"}}
"""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """How one is started. `env` is added to the bench's own."""

    command: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)


def install_peers(folder: Path) -> None:
    """Install both below `folder`, once."""
    if not (folder / "litellm" / "bin" / "litellm").exists():
        sys.stderr.write(f"installing {LITELLM}\n")
        venv.create(folder / "litellm", with_pip=True)
        subprocess.run([folder / "litellm/bin/pip", "install", "-qq", LITELLM], check=True)
    if not (folder / "node_modules" / "@portkey-ai").exists():
        sys.stderr.write(f"installing {PORTKEY}\n")
        subprocess.run(["npm", "install", "--silent", "--prefix", folder, PORTKEY], check=True)


def litellm(folder: Path, *, port: int, stub_url: str, secret: str) -> Peer:
    """Return LiteLLM's proxy."""
    config = folder / "litellm.yaml"
    config.write_text(LITELLM_CONFIG.format(stub=stub_url, secret=secret))
    program = str(folder / "litellm/bin/litellm")
    env = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "PATH": f"{folder / 'litellm/bin'}{os.pathsep}{os.environ['PATH']}",
    }
    return Peer(command=(program, "--config", str(config), "--port", str(port), "--telemetry", "False"), env=env)


def portkey(folder: Path, *, port: int) -> Peer:
    """Return Portkey's gateway; the upstream's address comes with each request (`PORTKEY_HEADERS`)."""
    script = folder / "node_modules/@portkey-ai/gateway/build/start-server.js"
    return Peer(command=("node", str(script), f"--port={port}", "--headless"))


def portkey_headers(stub_url: str) -> dict[str, str]:
    """Return the headers that tell Portkey where to send a request; the others do not mind them."""
    return {"x-portkey-provider": "openai", "x-portkey-custom-host": f"{stub_url}/v1"}
