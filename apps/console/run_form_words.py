"""How the form of a run calls its settings, in which unit they are, and which of them stand unfolded."""

from apps.training.recipes import LORA_RANKS

BASIC = (
    "recipe.n_steps",
    "recipe.trajectories_per_step",
    "recipe.learning_rate",
    "recipe.estimator",
    "recipe.max_staleness",
    "recipe.promote",
)
SELECTED = (
    "selection.channel",
    "selection.agent",
    "selection.min_reward",
    "selection.max_reward",
    "selection.snapshot",
)
FIXED = ("recipe.algorithm",)  # one choice only: nothing to ask
LABELS = {
    "recipe.n_steps": "Steps",
    "recipe.trajectories_per_step": "Batch",
    "recipe.minibatch_samples": "Minibatch",
    "recipe.estimator": "Rewards compared with",
    "recipe.ema_decay": "Decay of the mean",
    "recipe.group_size": "Group size",
    "recipe.max_grad_norm": "Gradient norm, at most",
    "recipe.lora_rank": "LoRA rank",
    "recipe.lora_alpha": "LoRA alpha",
    "recipe.clip_low": "Clip below",
    "recipe.clip_high": "Clip above",
    "recipe.max_staleness": "Staleness, at most",
    "recipe.wait_for_data_s": "Wait for data",
    "recipe.promote": "Goes live by itself",
    "recipe.zero_stage": "ZeRO stage",
    "recipe.n_processes": "Trainer processes",
    "recipe.max_tokens_per_microbatch": "Microbatch",
    "selection.group_prefix": "Group begins with",
    "selection.since": "Started since",
    "selection.until": "Started before",
    "selection.min_reward": "Reward, at least",
    "selection.max_reward": "Reward, at most",
    "selection.snapshot": "Snapshot",
}
UNITS = {
    "recipe.trajectories_per_step": "trajectories a step",
    "recipe.minibatch_samples": "model calls",
    "recipe.max_staleness": "versions",
    "recipe.wait_for_data_s": "seconds",
    "recipe.max_tokens_per_microbatch": "tokens",
    "recipe.group_size": "tries",
    "selection.min_reward": "−1 to 1",
    "selection.max_reward": "−1 to 1",
    "selection.since": "with zone",
    "selection.until": "with zone",
}
HINTS = {
    "recipe.trajectories_per_step": "What one new version learns from.",
    "recipe.learning_rate": "AdamW. Higher learns faster and forgets faster.",
    "recipe.estimator": "The moving mean suits live traffic; groups need replayed prompts.",
    "recipe.max_staleness": "How many versions old an answer may be.",
    "recipe.promote": "Else you promote each version by hand.",
    "recipe.lora_rank": "Ranks that engines can serve.",
    "recipe.max_grad_norm": "Longer gradients are cut to this.",
    "recipe.seed": "The same seed draws the same order.",
    "selection.channel": "Validation trajectories are for measuring only.",
    "selection.agent": "Short name; empty means all.",
    "selection.snapshot": "Id of a snapshot: only what it holds, with the rewards it has now.",
}
CHOICES = {
    "recipe.lora_rank": tuple((str(rank), str(rank)) for rank in LORA_RANKS),
    "recipe.estimator": (("ema", "their moving mean"), ("group", "other tries at the same prompt")),
}
