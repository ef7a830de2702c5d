"""The reward model: the policy's base with a LoRA adapter and a head that gives a whole conversation one number.

It is trained on pairs as a policy is, packed in the same tries; what it leaves is a sequence-classification model in
Hugging Face's form, which an engine or a worker can serve. Knows nothing of losses or batches.
"""

from pathlib import Path
from typing import Any

import deepspeed
import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from apps.core.contracts.training import REWARD_MODEL_DIR, TrainJob
from worker.engine.models.chat_template_path import CHAT_TEMPLATE
from worker.trainer.errors import TrainerError
from worker.trainer.files import build_folder
from worker.trainer.model import Policy, prepare_model
from worker.trainer.ranks import Ranks
from worker.trainer.trie_attention import lay_out
from worker.trainer.tries import Targets, Trie
from worker.trainer.tuning import load_base


class RewardModel(Policy):
    """One score for each target's node: what the sequence that ends there is worth."""

    def forward(self, *, trie: Trie, targets: Targets) -> tuple[Tensor, Tensor]:
        """Return scores (N,) of the sequences that end at the nodes before `targets`, and no entropies: zeros (N,)."""
        classifier = self.model.get_base_model()
        transformer = getattr(classifier, classifier.base_model_prefix)
        with self._autocast(trie.token_ids.device.type):
            answer = transformer(
                input_ids=trie.token_ids[None], position_ids=trie.depths[None], trie=lay_out(trie), use_cache=False
            )
            scores = classifier.score(answer.last_hidden_state[0, targets.nodes])  # (R, 1)
        scores = scores.squeeze(-1).float()[targets.rows]
        return scores, torch.zeros_like(scores)


def load_reward_model(job: TrainJob) -> RewardModel:
    """Return a fresh one on the job's base model: adapter and head are drawn from its seed, alike on every rank."""
    if job.lora is None:
        raise TrainerError("A reward model needs the settings of its adapter.")
    torch.manual_seed(job.seed)
    base = load_base(job.base_model_dir, kind=AutoModelForSequenceClassification, num_labels=1)
    lora = LoraConfig(
        r=job.lora.rank,
        lora_alpha=job.lora.alpha,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type=TaskType.SEQ_CLS,
    )
    return RewardModel(
        prepare_model(get_peft_model(base, lora), job), precision=job.precision, load_reference=lambda: None
    )


def save_reward_model(model: Any, job: TrainJob, *, run_dir: Path, ranks: Ranks) -> None:
    """Write the whole model with its adapter merged, and its tokenizer; all ranks call it, at the very end.

    The model cannot be trained any further: its adapter is gone.
    """
    folder = run_dir / REWARD_MODEL_DIR
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=job.zero_stage == 3):
        if not ranks.is_main:
            return
        tokenizer = AutoTokenizer.from_pretrained(job.base_model_dir, local_files_only=True)
        tokenizer.chat_template = CHAT_TEMPLATE.read_text(encoding="utf-8")
        merged = model.model.merge_and_unload()
        # Served in batches, it looks for the last token that is no padding.
        merged.config.pad_token_id = (
            tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        )
        with build_folder(folder) as partial:
            merged.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
