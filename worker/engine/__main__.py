"""Serve one model with vLLM: `python -m worker.engine --model DIR --served-name NAME --port N`."""

import argparse
import os
import sys
from pathlib import Path

from worker.engine.health import ASK_EVERY_S, HealthWatch
from worker.engine.launch import (
    EngineSettings,
    EngineSettingsError,
    build_command,
    count_cores,
    default_max_lora_rank,
    detect_device,
    detect_dtype,
)
from worker.engine.process import run_to_the_end
from worker.engine.warming import warm_up

# Without a GPU, engine and trainer share the cores, and vLLM's workers spin between calls. A start yields to nobody: at
# this niceness one on a busy machine took more than ten minutes instead of half a minute.
CPU_NICENESS = 10


def parse_settings(arguments: list[str] | None = None) -> EngineSettings:
    """Read the command line; a wrong value ends the process with a message, as argparse does."""
    parser = argparse.ArgumentParser(prog="worker.engine", description="Serve one model with vLLM.")
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    parser.add_argument("--served-name", required=True, help="name of the base model in requests")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default=detect_dtype())
    parser.add_argument("--max-model-len", type=int, default=2048, help="tokens of prompt and answer together")
    parser.add_argument("--max-loras", type=int, default=4, help="adapters that can answer at the same moment")
    parser.add_argument("--max-lora-rank", type=int, default=default_max_lora_rank(detect_device()))
    parser.add_argument("--gpu-memory-share", type=float, default=0.5, help="part of the GPU's memory to take")
    parser.add_argument(
        "--media-domains",
        type=lambda text: tuple(host for host in text.split(",") if host),
        default=(),
        help="hosts from which images may be fetched, comma separated",
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default=detect_device())
    options = parser.parse_args(arguments)
    try:
        return EngineSettings(**vars(options), n_cores=count_cores())
    except EngineSettingsError as error:
        parser.error(str(error))


def main() -> int:
    """Serve until told to stop; return vLLM's exit code."""
    settings = parse_settings()
    argv, environment = build_command(settings, python=sys.executable, base_env=dict(os.environ))
    watch = HealthWatch(settings.port)
    return run_to_the_end(
        argv,
        environment,
        niceness=CPU_NICENESS if settings.device == "cpu" else 0,
        is_up=lambda: watch.was_well,
        once_up=lambda: warm_up(settings.port, settings.served_name),
        is_dead=watch.is_dead,
        ask_every_s=ASK_EVERY_S,
    )


if __name__ == "__main__":
    raise SystemExit(main())
