"""The training steps that `bench.trainer` compares, each on its own copy of one model."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import Tensor, nn

from apps.core.contracts.training import TrainJob, TrainSample
from worker.trainer.aggregation import weigh_samples
from worker.trainer.losses import PolicyTokens, policy_loss
from worker.trainer.model import Policy, build_engine, load_policy
from worker.trainer.ranks import Ranks
from worker.trainer.steps import Foresight, optimizer_step, prepare_minibatch

Samples = Sequence[TrainSample]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """Somebody's training step on one batch: `step` makes it and returns the loss."""

    name: str
    n_computed: int
    step: Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Samples as rows padded to the right: ids, mask, predicts (B, T); tokens and their weights in order (N,)."""

    ids: Tensor
    mask: Tensor
    predicts: Tensor
    tokens: Tensor
    behaviour: Tensor
    advantages: Tensor
    weights: Tensor
    samples: Tensor


def make_ours(samples: Samples, *, job: TrainJob, ranks: Ranks) -> Contender:
    """The trainer's own step, planning and packing included."""
    engine, foresight = build_engine(load_policy(job), job), Foresight(samples=samples)

    def step() -> float:
        parts = prepare_minibatch(engine, samples, job=job, ranks=ranks, foresight=foresight)
        return float(optimizer_step(engine, parts, job=job, ranks=ranks).sums.loss)

    parts = prepare_minibatch(engine, samples, job=job, ranks=ranks, foresight=foresight)
    return Contender(name="ours", n_computed=sum(len(part.micro.trie.token_ids) for part in parts), step=step)


def make_plain_torch(samples: Samples, *, job: TrainJob) -> Contender:
    """Rows of like length together, no mask (padding stands where a causal model does not look), AdamW."""
    model = load_rows_model(job)
    optimizer = torch.optim.AdamW(trainable(model), lr=job.optimizer.learning_rate, weight_decay=0.0)
    groups: list[list[TrainSample]] = []
    for sample in sorted(samples, key=count_tokens):
        if groups and (len(groups[-1]) + 1) * count_tokens(sample) <= job.max_tokens_per_microbatch:
            groups[-1].append(sample)
        else:
            groups.append([sample])
    micros = [pad(group, samples=samples, job=job) for group in groups]

    def step() -> float:
        total = 0.0
        for rows in micros:
            loss = compute_loss(model(rows.ids, None, rows.predicts, rows.tokens), rows, job=job)
            loss.backward()
            total += float(loss)
        torch.nn.utils.clip_grad_norm_(trainable(model), job.optimizer.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        return total

    return Contender(name="plain torch", n_computed=sum(rows.ids.numel() for rows in micros), step=step)


def make_deepspeed(samples: Samples, *, job: TrainJob) -> Contender:
    """ZeRO 2, rows in their order, as many as fit when padded to the longest of the batch, with a mask."""
    model = load_rows_model(job)
    longest = max(map(count_tokens, samples))
    n_rows = max(1, job.max_tokens_per_microbatch // longest)
    groups = [samples[at : at + n_rows] for at in range(0, len(samples), n_rows)]
    micros = [pad(group, samples=samples, job=job, length=longest) for group in groups]
    config = {
        "train_micro_batch_size_per_gpu": n_rows,
        "gradient_accumulation_steps": len(micros),
        "gradient_clipping": job.optimizer.max_grad_norm,
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1_000_000_000,
    }
    optimizer = torch.optim.AdamW(trainable(model), lr=job.optimizer.learning_rate, weight_decay=0.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    def step() -> float:
        total = 0.0
        for rows in micros:
            loss = compute_loss(engine(rows.ids, rows.mask, rows.predicts, rows.tokens), rows, job=job)
            engine.backward(loss * len(micros))  # DeepSpeed divides by their number
            engine.step()
            total += float(loss)
        return total

    return Contender(name="DeepSpeed, padded", n_computed=sum(rows.ids.numel() for rows in micros), step=step)


def make_trl(samples: Samples, *, job: TrainJob, folder: Path) -> Contender:
    """`GRPOTrainer`: prompts padded to the left and answers to the right, to the longest of the batch."""
    trainer, n_rows = _build_trl_trainer(samples, job=job, folder=folder)
    inputs = _make_trl_inputs(samples)
    micros = [
        {name: value if value.dim() == 0 else value[at : at + n_rows] for name, value in inputs.items()}
        for at in range(0, len(samples), n_rows)
    ]
    trainer.current_gradient_accumulation_steps = len(micros)

    def step() -> float:
        total = 0.0
        trainer.model.train()
        for micro in micros:
            with trainer.compute_loss_context_manager():
                loss = trainer.compute_loss(trainer.model, micro)
            trainer.accelerator.backward(loss)
            total += float(loss.detach())
        trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), job.optimizer.max_grad_norm)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        return total

    n_computed = inputs["prompt_ids"].numel() + inputs["completion_ids"].numel()
    return Contender(name="TRL", n_computed=n_computed, step=step)


class RowsModel(nn.Module):  # type: ignore[misc]  # torch is Any to the type checker
    """The same model over padded rows, by transformers' own attention; log-probs where they are asked for."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.model = policy.model
        self.model.get_base_model().set_attn_implementation("sdpa")
        self.is_half = policy.precision == "bf16"

    def forward(self, ids: Tensor, mask: Tensor | None, predicts: Tensor, tokens: Tensor) -> Tensor:
        """Return the log-probs of `tokens` (N,), the ones behind the positions that `predicts` marks."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.is_half), self._output_only_at(predicts):
            logits = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits  # (N, V)
        return torch.log_softmax(logits.float(), dim=-1).gather(-1, tokens[:, None])[:, 0]

    @contextmanager
    def _output_only_at(self, predicts: Tensor) -> Iterator[None]:
        hook = self.model.get_output_embeddings().register_forward_pre_hook(
            lambda _layer, inputs: (inputs[0][predicts], *inputs[1:])
        )
        try:
            yield
        finally:
            hook.remove()


def load_rows_model(job: TrainJob) -> RowsModel:
    """Return a fresh copy in training mode."""
    model = RowsModel(load_policy(job))
    model.train()
    return model


def trainable(model: Any) -> list[Tensor]:
    """Return the parameters that train."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def count_tokens(sample: TrainSample) -> int:
    """Return the length of a sample."""
    return len(sample.prompt_ids) + len(sample.completion_ids)


def pad(group: Samples, *, samples: Samples, job: TrainJob, length: int = 0) -> Rows:
    """Return some of `samples` as rows of `length`, or of the longest of them."""
    length = length or max(map(count_tokens, group))
    ids = torch.zeros((len(group), length), dtype=torch.long)
    mask, predicts = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    for row, sample in enumerate(group):
        n_tokens = count_tokens(sample)
        ids[row, :n_tokens] = torch.tensor(sample.prompt_ids + sample.completion_ids)
        mask[row, :n_tokens] = 1
        predicts[row, len(sample.prompt_ids) - 1 : n_tokens - 1] = True
    weights = {sample.step_id: weight for sample, weight in zip(samples, weigh_samples(samples, job.loss), strict=True)}
    n_answers = torch.tensor([len(sample.completion_ids) for sample in group])
    return Rows(
        ids=ids,
        mask=mask,
        predicts=predicts,
        tokens=torch.tensor([token for sample in group for token in sample.completion_ids]),
        behaviour=torch.tensor([logprob for sample in group for logprob in sample.logprobs]),
        advantages=torch.tensor([sample.advantage for sample in group]).repeat_interleave(n_answers),
        weights=torch.tensor([weights[sample.step_id] for sample in group]).repeat_interleave(n_answers),
        samples=torch.arange(len(group)).repeat_interleave(n_answers),
    )


def compute_loss(logprobs: Tensor, rows: Rows, *, job: TrainJob) -> Tensor:
    """Return the trainer's own loss."""
    tokens = PolicyTokens(
        logprobs=logprobs,
        behaviour=rows.behaviour,
        proximal=rows.behaviour,
        advantages=rows.advantages,
        weights=rows.weights,
        samples=rows.samples,
        entropies=torch.zeros_like(rows.behaviour),
    )
    return policy_loss(tokens, job.loss).loss


def _build_trl_trainer(samples: Samples, *, job: TrainJob, folder: Path) -> tuple[Any, int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]  # noqa: PLC0415  slow to import
    from datasets import Dataset  # type: ignore[import-not-found]  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    from worker.engine.models.tiny import train_tokenizer  # noqa: PLC0415

    longest = max(len(s.prompt_ids) for s in samples) + max(len(s.completion_ids) for s in samples)
    n_rows = max(1, job.max_tokens_per_microbatch // longest)
    settings = GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=job.precision == "bf16",
        per_device_train_batch_size=len(samples),
        num_generations=len(samples),
        learning_rate=job.optimizer.learning_rate,
        max_grad_norm=job.optimizer.max_grad_norm,
        epsilon_high=job.loss.clip_high,
        gradient_checkpointing=False,
        report_to="none",
    )
    policy = load_policy(job)  # for its adapter's configuration
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(job.base_model_dir, dtype=torch.float32),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": ["Hello"] * len(samples)}),
        processing_class=train_tokenizer(),
        peft_config=policy.model.peft_config["default"],
    )
    trainer.create_optimizer()
    return trainer, n_rows


def _make_trl_inputs(samples: Samples) -> dict[str, Tensor]:
    n_prompt = max(len(sample.prompt_ids) for sample in samples)
    n_answer = max(len(sample.completion_ids) for sample in samples)
    prompts, answers = torch.zeros(len(samples), n_prompt).long(), torch.zeros(len(samples), n_answer).long()
    prompt_mask, answer_mask = torch.zeros_like(prompts), torch.zeros_like(answers)
    old = torch.zeros(len(samples), n_answer)
    for row, sample in enumerate(samples):
        at, n_tokens = n_prompt - len(sample.prompt_ids), len(sample.completion_ids)
        prompts[row, at:], prompt_mask[row, at:] = torch.tensor(sample.prompt_ids), 1
        answers[row, :n_tokens], answer_mask[row, :n_tokens] = torch.tensor(sample.completion_ids), 1
        old[row, :n_tokens] = torch.tensor(sample.logprobs)
    return {
        "prompt_ids": prompts,
        "prompt_mask": prompt_mask,
        "completion_ids": answers,
        "completion_mask": answer_mask,
        "advantages": torch.tensor([sample.advantage for sample in samples]),
        "old_per_token_logps": old,
        "num_items_in_batch": answer_mask.sum(),
    }
