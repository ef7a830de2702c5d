"""The command line and environment of an engine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from worker.engine.__main__ import parse_settings
from worker.engine.launch import EngineSettings, EngineSettingsError, build_command, choose_dtype, default_max_lora_rank
from worker.engine.models.chat_template_path import CHAT_TEMPLATE


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


@pytest.fixture
def engine_settings(model: Path) -> EngineSettings:
    return EngineSettings(model=model, served_name="base", port=8100, n_cores=2)


def flag(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_it_starts_vllms_server_by_its_module(engine_settings: EngineSettings) -> None:
    argv, _ = build_command(engine_settings, python="/ml/python", base_env={})
    assert argv[:3] == ["/ml/python", "-m", "vllm.entrypoints.openai.api_server"]


def test_it_asks_for_exact_log_probs_and_for_no_silent_sampling_defaults(engine_settings: EngineSettings) -> None:
    argv, _ = build_command(engine_settings, python="python", base_env={})
    assert flag(argv, "--logprobs-mode") == "processed_logprobs"
    assert flag(argv, "--generation-config") == "vllm"


def test_it_listens_on_this_host_only(engine_settings: EngineSettings) -> None:
    argv, _ = build_command(engine_settings, python="python", base_env={})
    assert flag(argv, "--host") == "127.0.0.1"


def test_it_fetches_images_from_named_hosts_only(engine_settings: EngineSettings) -> None:
    argv, env = build_command(engine_settings, python="python", base_env={})
    assert argv[argv.index("--allowed-media-domains") + 1 :] == ["claw-media-domains-is-empty.invalid"]
    assert env["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"
    open_to_two = replace(engine_settings, media_domains=("img.example.com", "cdn.example.com"))
    argv, _ = build_command(open_to_two, python="python", base_env={})
    assert argv[argv.index("--allowed-media-domains") + 1 :] == ["img.example.com", "cdn.example.com"]


def test_it_serves_tools_by_the_houses_template(engine_settings: EngineSettings) -> None:
    argv, _ = build_command(engine_settings, python="python", base_env={})
    assert flag(argv, "--chat-template") == str(CHAT_TEMPLATE)
    assert CHAT_TEMPLATE.is_file()
    assert flag(argv, "--tool-call-parser") == "hermes"
    assert "--enable-auto-tool-choice" in argv


def test_a_cpu_engine_binds_every_core_and_caches_prefixes(engine_settings: EngineSettings) -> None:
    argv, env = build_command(engine_settings, python="python", base_env={})
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"
    assert flag(argv, "--block-size") == "32"
    assert "--enforce-eager" in argv


def test_one_core_is_bound_by_its_number(engine_settings: EngineSettings) -> None:
    _, env = build_command(replace(engine_settings, n_cores=1), python="python", base_env={})
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "0"


def test_a_gpu_engine_gets_none_of_the_cpu_settings(engine_settings: EngineSettings) -> None:
    argv, env = build_command(replace(engine_settings, device="cuda"), python="python", base_env={})
    assert not {"--enforce-eager", "--block-size"} & set(argv)
    assert flag(argv, "--gpu-memory-utilization") == "0.5"
    assert not {name for name in env if name.startswith("VLLM_CPU")}


def test_it_keeps_the_callers_environment_and_stays_offline(engine_settings: EngineSettings) -> None:
    _, env = build_command(engine_settings, python="python", base_env={"PATH": "/bin", "HF_HUB_OFFLINE": "0"})
    assert env["PATH"] == "/bin"
    assert env["HF_HUB_OFFLINE"] == "1"
    assert env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"


def test_it_refuses_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(EngineSettingsError, match=r"no config\.json"):
        EngineSettings(model=tmp_path, served_name="base", port=8100)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_lora_rank": 12}, "max_lora_rank must be one of"),
        ({"max_loras": 0}, "max_loras must be between"),
        ({"max_loras": 65}, "max_loras must be between"),
        ({"max_model_len": 0}, "max_model_len must be positive"),
        ({"port": 0}, "port must be between"),
        ({"gpu_memory_share": 1.5}, "gpu_memory_share must be above 0"),
    ],
)
def test_it_refuses_what_vllm_would_refuse_later(model: Path, change: dict[str, Any], words: str) -> None:
    engine_settings = EngineSettings(model=model, served_name="base", port=8100)
    with pytest.raises(EngineSettingsError, match=words):
        replace(engine_settings, **change)


def test_the_command_line_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_settings(["--model", str(tmp_path), "--served-name", "base", "--port", "8100"])
    assert "no config.json" in capsys.readouterr().err


def test_the_command_line_becomes_settings(model: Path) -> None:
    words = ["--model", str(model), "--served-name", "base", "--port", "8101", "--dtype", "float32", "--max-loras", "8"]
    engine_settings = parse_settings([*words, "--media-domains=a.example.com,b.example.com"])
    assert engine_settings.media_domains == ("a.example.com", "b.example.com")
    assert parse_settings([*words, "--media-domains="]).media_domains == ()
    assert (engine_settings.port, engine_settings.dtype, engine_settings.max_loras) == (8101, "float32", 8)


@pytest.mark.parametrize(
    ("line", "dtype"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 amx_tile", "bfloat16"),
        ("flags\t\t: fpu amx_bf16", "bfloat16"),
        ("Features\t: fp asimd bf16 i8mm", "bfloat16"),
        ("flags\t\t: fpu avx512f avx512_vnni", "float32"),
    ],
)
def test_a_cpu_that_would_emulate_bfloat16_gets_float32(line: str, dtype: str, tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"model name\t: some CPU\n{line}\n")
    assert choose_dtype("cpu", cpuinfo=cpuinfo) == dtype
    assert choose_dtype("cuda", cpuinfo=cpuinfo) == "bfloat16"


def test_a_cpu_that_nothing_is_known_of_gets_float32(tmp_path: Path) -> None:
    assert choose_dtype("cpu", cpuinfo=tmp_path / "missing") == "float32"


def test_a_cpu_serves_small_ranks_unless_told_otherwise() -> None:
    assert default_max_lora_rank("cpu") < default_max_lora_rank("cuda")
