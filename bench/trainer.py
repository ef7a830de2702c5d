"""How long one optimizer step takes: ours, plain torch, DeepSpeed with padding, and TRL, on the same calls.

    make bench-trainer            (or: python -m bench.trainer [--rounds N] [--layers N] [--precision fp32])

All train a LoRA adapter on the same random Llama with the same loss in the same precision, and compute the output layer
only where something is asked. The model has the shape of SmolLM2-135M with fewer layers and a smaller vocabulary, so
that it takes minutes on two cores. Ours is the trainer's own step. Plain torch: rows of like length padded to the
longest of a micro-batch. DeepSpeed (ZeRO 2): rows in their order padded to the longest of the batch, with a mask. TRL:
`GRPOTrainer`'s loss, backward, clip, step; nothing is generated. Each gets micro-batches of at most as many tokens,
padding counted. They take turns, so that a busy machine is busy for all, and each one's median counts. Computed are
positions that pass through the layers; tokens are those of the calls, however often they are computed.

Prints a table and, last, one line `BENCH_TRAINER {json}`.
"""

import argparse
import json
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.core.contracts.training import LoraSettings, LossSettings, OptimizerSettings, TrainJob, TrainSample
from bench.trainer_batches import BATCHES, VOCABULARY

if TYPE_CHECKING:
    from bench.trainer_contenders import Contender

MAX_TOKENS = 2048
TITLES = f"{'batch':18}{'who':20}{'tokens':>8}{'computed':>10}{'s/step':>9}{'tokens/s':>10}{'to plain torch':>16}"


def make_model(folder: Path, *, n_layers: int) -> None:
    """Write the random model."""
    import torch  # noqa: PLC0415  after the environment is set
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=n_layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def make_job(model_dir: Path, *, precision: str) -> TrainJob:
    """Return the settings that all of them work by: the defaults of a recipe."""
    return TrainJob(
        run_id="bench",
        base_model_dir=str(model_dir),
        initial_adapter_dir=None,
        n_steps=1,
        lora=LoraSettings(rank=8, alpha=16),
        loss=LossSettings(),
        optimizer=OptimizerSettings(learning_rate=1e-5, max_grad_norm=1.0, minibatch_samples=16),
        zero_stage=0,
        max_tokens_per_microbatch=MAX_TOKENS,
        seed=1,
        device="cpu",
        precision=precision,
    )


def prepare_environment() -> None:
    """Be the only process of a group, as the launcher would have it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def time_steps(contenders: Sequence["Contender"], *, n_rounds: int) -> dict[str, float]:
    """Return each one's median seconds, in turns, after one step each that does not count."""
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for number in range(n_rounds + 1):
        for contender in contenders:
            began = time.perf_counter()
            contender.step()
            if number:
                seconds[contender.name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def compare(name: str, contenders: Sequence["Contender"], *, n_tokens: int, n_rounds: int) -> dict[str, Any]:
    """Measure one batch, print its rows, return them."""
    seconds = time_steps(contenders, n_rounds=n_rounds)
    rows = {}
    for contender in contenders:
        took, plain = seconds[contender.name], seconds["plain torch"]
        print(
            f"{name:18}{contender.name:20}{n_tokens:>8}{contender.n_computed:>10}{took:>9.3f}{n_tokens / took:>10.0f}"
            f"{took / plain:>15.2f}x",
            flush=True,
        )
        rows[contender.name] = {
            "computed": contender.n_computed,
            "s_per_step": round(took, 4),
            "tokens_per_s": round(n_tokens / took, 1),
            "to_plain_torch": round(took / plain, 3),
        }
    ours, plain_rows = rows["ours"], rows["plain torch"]
    return {
        "tokens": n_tokens,
        "rows": rows,
        "times_fewer_computed": round(plain_rows["computed"] / ours["computed"], 2),
        "times_faster_than_plain_torch": round(plain_rows["s_per_step"] / ours["s_per_step"], 2),
    }


def run(options: argparse.Namespace, folder: Path) -> None:
    from bench import trainer_contenders as made_by  # noqa: PLC0415  torch reads the environment when imported
    from worker.trainer.ranks import process_group  # noqa: PLC0415

    make_model(folder / "model", n_layers=options.layers)
    job = make_job(folder / "model", precision=options.precision)
    result: dict[str, Any] = {"n_layers": options.layers, "precision": options.precision, "load": os.getloadavg()[0]}
    print(TITLES, flush=True)
    with process_group(folder, device="cpu") as ranks:
        for name in options.batches:
            samples: list[TrainSample] = BATCHES[name]()
            contenders = [
                made_by.make_ours(samples, job=job, ranks=ranks),
                made_by.make_plain_torch(samples, job=job),
                made_by.make_deepspeed(samples, job=job),
                made_by.make_trl(samples, job=job, folder=folder / "trl"),
            ]
            n_tokens = sum(map(made_by.count_tokens, samples))
            result[name] = compare(name, contenders, n_tokens=n_tokens, n_rounds=options.rounds)
    print(f"BENCH_TRAINER {json.dumps(result)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.trainer", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="steps of each that count")
    parser.add_argument("--layers", type=int, default=6, help="of the model; SmolLM2-135M has 30")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--batches", nargs="+", choices=BATCHES, default=list(BATCHES))
    options = parser.parse_args()
    prepare_environment()
    with tempfile.TemporaryDirectory(prefix="claw-bench-") as folder:
        run(options, Path(folder))


if __name__ == "__main__":
    main()
