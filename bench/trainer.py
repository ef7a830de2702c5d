"""How long one optimizer step takes: ours, plain torch, DeepSpeed with padding, and TRL, on the same calls.

    make bench-trainer            (or: python -m bench.trainer [--rounds N] [--layers N] [--precision fp32])

All train a LoRA adapter on the same random Llama with the same loss in the same precision, and compute the output layer
only where something is asked. The model has the shape of SmolLM2-135M with fewer layers and a smaller vocabulary, so
that it takes minutes on two cores. Ours is the trainer's own step. Plain torch: rows of like length padded to the
longest of a micro-batch. DeepSpeed (ZeRO 2): rows in their order padded to the longest of the batch, with a mask. TRL:
`GRPOTrainer`'s loss, backward, clip, step; nothing is generated. Each gets micro-batches of at most as many tokens,
padding counted. They take turns, so that a busy machine is busy for all, and each one's median counts; the processor's
time stands beside the clock's. Computed are positions that pass through the layers; tokens are those of the calls,
however often they are computed.

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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.core.contracts.training import LoraSettings, LossSettings, OptimizerSettings, TrainJob, TrainSample
from bench.trainer_batches import BATCHES, VOCABULARY
from worker.trainer.build_locks import BUILD_FOLDER, find_build_folder

if TYPE_CHECKING:
    from bench.trainer_contenders import Contender

MAX_TOKENS = 2048
TITLES = (
    f"{'batch':18}{'who':20}{'tokens':>8}{'computed':>10}{'s/step':>9}{'cpu s':>9}{'tokens/s':>10}"
    f"{'to plain torch':>16}{'in cpu s':>16}"
)


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
    os.environ[BUILD_FOLDER] = str(find_build_folder(os.environ))
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))), "OMP_WAIT_POLICY": "PASSIVE"}


@dataclass(frozen=True, kw_only=True)
class Took:
    """Seconds of a step: on the clock, and of processor time, which a busy machine leaves as it is."""

    clock: float
    cpu: float


def time_steps(contenders: Sequence["Contender"], *, n_rounds: int) -> dict[str, Took]:
    """Return each one's medians, in turns, after one step each that does not count."""
    taken: dict[str, list[Took]] = {contender.name: [] for contender in contenders}
    for number in range(n_rounds + 1):
        for contender in contenders:
            began, cpu_began = time.perf_counter(), time.process_time()
            contender.step()
            if number:
                clock, cpu = time.perf_counter() - began, time.process_time() - cpu_began
                taken[contender.name].append(Took(clock=clock, cpu=cpu))
    return {
        name: Took(clock=statistics.median(t.clock for t in each), cpu=statistics.median(t.cpu for t in each))
        for name, each in taken.items()
    }


def compare(name: str, contenders: Sequence["Contender"], *, n_tokens: int, n_rounds: int) -> dict[str, Any]:
    """Measure one batch, print its rows, return them."""
    taken = time_steps(contenders, n_rounds=n_rounds)
    plain = taken["plain torch"]
    rows = {}
    for contender in contenders:
        took = taken[contender.name]
        print(
            f"{name:18}{contender.name:20}{n_tokens:>8}{contender.n_computed:>10}{took.clock:>9.3f}{took.cpu:>9.3f}"
            f"{n_tokens / took.clock:>10.0f}{took.clock / plain.clock:>15.2f}x{took.cpu / plain.cpu:>15.2f}x",
            flush=True,
        )
        rows[contender.name] = {
            "computed": contender.n_computed,
            "s_per_step": round(took.clock, 4),
            "cpu_s_per_step": round(took.cpu, 4),
            "tokens_per_s": round(n_tokens / took.clock, 1),
        }
    ours = taken["ours"]
    return {
        "tokens": n_tokens,
        "rows": rows,
        "times_fewer_computed": round(rows["plain torch"]["computed"] / rows["ours"]["computed"], 2),
        "time_to_plain_torch": round(ours.clock / plain.clock, 3),
        "cpu_to_plain_torch": round(ours.cpu / plain.cpu, 3),
        "times_faster_than_plain_torch": round(plain.clock / ours.clock, 2),
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
    parser.add_argument("--rounds", type=int, default=3, help="steps of each that count")
    parser.add_argument("--layers", type=int, default=4, help="of the model; SmolLM2-135M has 30")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--batches", nargs="+", choices=BATCHES, default=list(BATCHES))
    options = parser.parse_args()
    prepare_environment()
    with tempfile.TemporaryDirectory(prefix="claw-bench-") as folder:
        run(options, Path(folder))


if __name__ == "__main__":
    main()
