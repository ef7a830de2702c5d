"""The model itself: loads safe weights only, renders a conversation by its own chat template, reads one number.

With one label the number is its logit; with several, the log-odds of the last one (by custom the good one).
"""

import math
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


class RewardModel:
    """A sequence-classification model and its tokenizer, on the GPU where there is one."""

    def __init__(self, folder: Path, *, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        model = AutoModelForSequenceClassification.from_pretrained(
            folder, trust_remote_code=False, use_safetensors=True
        )
        self.model = model.to(self.device).eval()

    def answer(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Return `score`, or as `error` why there is none."""
        try:
            ids = self.encode(messages)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return {"error": f"the conversation cannot be rendered: {error}"}
        if not ids:
            return {"error": "the conversation has no words"}
        score = self.score(ids)
        return {"score": score} if math.isfinite(score) else {"error": "the model returned no number"}

    def encode(self, messages: list[dict[str, Any]]) -> list[int]:
        """Return the last `max_tokens` token ids of the conversation."""
        if self.tokenizer.chat_template:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False)
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        else:
            text = "\n\n".join(f"{message['role']}: {message.get('content') or ''}" for message in messages)
            ids = self.tokenizer(text)["input_ids"]
        return list(ids[-self.max_tokens :])

    def score(self, ids: list[int]) -> float:
        """Return the number for one conversation."""
        batch = torch.tensor([ids], device=self.device)  # (1, T)
        with torch.inference_mode():
            logits = self.model(input_ids=batch, attention_mask=torch.ones_like(batch)).logits[0].float()  # (L,)
        if logits.numel() == 1:
            return float(logits[0])
        return float(logits[-1] - torch.logsumexp(logits[:-1], dim=0))
