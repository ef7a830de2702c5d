"""How one vLLM engine is started: settings in, command line and environment out.

Every flag that the platform's exactness rests on stands here with its reason. Knows vLLM's options; does not know who
supervises the process or which policy it will serve.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from worker.engine.models.chat_template_path import CHAT_TEMPLATE

Device = Literal["cpu", "cuda"]
Dtype = Literal["bfloat16", "float32"]

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM accepts
# vLLM reads an empty list of hosts as "any"; this name leads nowhere (RFC 6761) and stands in its refusal.
NO_MEDIA_DOMAIN = "claw-media-domains-is-empty.invalid"
MAX_CPU_LORAS = 64  # adapters kept in memory; one too many on the device is evicted in silence


class EngineSettingsError(ValueError):
    """The engine cannot be started as asked; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One engine. `max_loras` adapters can answer at the same moment; CPU threads are bound one to a core."""

    model: Path
    served_name: str
    port: int
    host: str = "127.0.0.1"  # vLLM's key does not protect its control endpoints: keep engines private
    device: Device = "cpu"
    dtype: Dtype = "bfloat16"
    max_model_len: int = 2048
    max_loras: int = 4
    max_lora_rank: int = 8
    n_cores: int = 1
    kv_cache_gib: int = 1  # CPU only
    gpu_memory_share: float = 0.5  # vLLM would take nearly all, and a trainer on the same GPU needs the rest
    tool_call_parser: str = "hermes"
    media_domains: tuple[str, ...] = ()  # hosts from which it may fetch images that a prompt names by their address

    def __post_init__(self) -> None:
        """Refuse what vLLM would refuse half a minute later, or accept and serve wrongly."""
        if not (self.model / "config.json").is_file():
            raise EngineSettingsError(f"{self.model} is not a model folder: it has no config.json")
        if self.max_lora_rank not in LORA_RANKS:
            raise EngineSettingsError(f"max_lora_rank must be one of {LORA_RANKS}, not {self.max_lora_rank}")
        if not 1 <= self.max_loras <= MAX_CPU_LORAS:
            raise EngineSettingsError(f"max_loras must be between 1 and {MAX_CPU_LORAS}, not {self.max_loras}")
        if self.max_model_len < 1:
            raise EngineSettingsError(f"max_model_len must be positive, not {self.max_model_len}")
        if not 0 < self.gpu_memory_share <= 1:
            raise EngineSettingsError(f"gpu_memory_share must be above 0 and at most 1, not {self.gpu_memory_share}")
        if not 1 <= self.port <= 65535:
            raise EngineSettingsError(f"port must be between 1 and 65535, not {self.port}")


def build_command(
    settings: EngineSettings, *, python: str, base_env: dict[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the argument list (with `python` first) and the whole environment of the engine."""
    argv = [python, "-m", "vllm.entrypoints.openai.api_server", *_flags(settings)]
    return argv, {**base_env, **_environment(settings)}


def _flags(settings: EngineSettings) -> list[str]:
    flags = {
        "--model": str(settings.model),
        "--served-model-name": settings.served_name,
        "--host": settings.host,
        "--port": str(settings.port),
        "--dtype": settings.dtype,
        "--max-model-len": str(settings.max_model_len),
        "--max-loras": str(settings.max_loras),
        "--max-cpu-loras": str(MAX_CPU_LORAS),
        "--max-lora-rank": str(settings.max_lora_rank),
        "--logprobs-mode": "processed_logprobs",  # log-probs at the sampling temperature, as the trainer needs them
        "--generation-config": "vllm",  # a model folder's own sampling defaults would be silent parameters
        "--tool-call-parser": settings.tool_call_parser,
        "--chat-template": str(CHAT_TEMPLATE),
    }
    switches = ["--enable-lora", "--enable-prefix-caching", "--enable-scale-out", "--enable-auto-tool-choice"]
    if settings.device == "cpu":
        flags["--block-size"] = "32"  # with the default, prefixes were never cached on CPU
        switches.append("--enforce-eager")  # compiling costs minutes and gains little on CPU
    else:
        flags["--gpu-memory-utilization"] = str(settings.gpu_memory_share)
    # Agents choose these addresses, and an engine reaches what they must not: its own control endpoints, for one.
    hosts = ["--allowed-media-domains", *(settings.media_domains or [NO_MEDIA_DOMAIN])]
    return [word for pair in flags.items() for word in pair] + switches + hosts


def _environment(settings: EngineSettings) -> dict[str, str]:
    environment = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",  # an allowed host could lead to any other
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",  # opens /pause, /resume and /collective_rpc for full refreshes
    }
    if settings.device == "cpu":
        environment["VLLM_CPU_KVCACHE_SPACE"] = str(settings.kv_cache_gib)
        # The default binds a single core on small machines.
        environment["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{settings.n_cores - 1}" if settings.n_cores > 1 else "0"
    return environment


def detect_device() -> Device:
    """NVIDIA's kernel module shows every GPU as a device node; nothing needs to be imported to see it."""
    return "cuda" if Path("/dev/nvidiactl").exists() else "cpu"


def detect_dtype() -> Dtype:
    """Return the quicker number format on this machine."""
    return choose_dtype(detect_device(), cpuinfo=Path("/proc/cpuinfo"))


def choose_dtype(device: Device, *, cpuinfo: Path) -> Dtype:
    """Return bfloat16 where the hardware multiplies it: a CPU that cannot emulates it, two to three times slower.

    `cpuinfo` is what Linux tells of the CPU (`avx512_bf16`, `amx_bf16`, ARM's `bf16`); elsewhere there is no such file.
    """
    if device == "cuda":
        return "bfloat16"
    words = cpuinfo.read_text(encoding="ascii", errors="replace").split() if cpuinfo.exists() else []
    return "bfloat16" if {"avx512_bf16", "amx_bf16", "bf16"}.intersection(words) else "float32"


def default_max_lora_rank(device: Device) -> int:
    """Return the largest rank to serve: on a CPU each token pays for the largest, whatever its adapter's own is."""
    return 8 if device == "cpu" else 32


def count_cores() -> int:
    """Cores that exist; vLLM itself narrows the binding to those this process may use."""
    return os.cpu_count() or 1
