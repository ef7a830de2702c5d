"""From a run's rows to what the trainer process is told. Knows no file and no process."""

from apps.core.contracts.training import LoraSettings, OptimizerSettings, TokenText, TrainJob
from apps.training.models import Run
from apps.training.objectives import build_critic, build_loss
from apps.training.recipes import RecipeConfig, read_recipe


def build_job(run: Run, *, device: str, engine_dtype: str, token_texts: tuple[TokenText, ...] = ()) -> TrainJob:
    """Return the trainer's job. It computes as exactly as the engines do, so that both can be compared."""
    recipe, start = read_recipe(run.recipe), run.start_version
    return TrainJob(
        run_id=run.id,
        base_model_dir=run.policy.base_model_dir,
        initial_adapter_dir=start.adapter_path if start.is_adapter and recipe.makes_versions else None,
        initial_weights_dir=start.adapter_path if start.is_whole and recipe.makes_versions else None,
        n_steps=recipe.n_steps,
        lora=_build_lora(recipe),
        loss=build_loss(recipe),
        optimizer=OptimizerSettings(
            learning_rate=recipe.own("learning_rate"),
            max_grad_norm=recipe.max_grad_norm,
            minibatch_samples=recipe.minibatch_samples,
        ),
        zero_stage=recipe.zero_stage,
        max_tokens_per_microbatch=recipe.max_tokens_per_microbatch,
        seed=recipe.seed,
        device=device,
        algorithm=recipe.algorithm,
        critic=build_critic(recipe),
        precision="fp32" if engine_dtype == "float32" else "bf16",
        tuning=recipe.tuning,
        offload=recipe.offload,
        gradient_checkpointing=recipe.gradient_checkpointing,
        token_texts=token_texts,
        keep_checkpoints=recipe.keep_checkpoints,
        keep_best=recipe.keep_best,
    )


def _build_lora(recipe: RecipeConfig) -> LoraSettings | None:
    if recipe.lora_rank is None or recipe.lora_alpha is None:
        return None
    return LoraSettings(rank=recipe.lora_rank, alpha=recipe.lora_alpha)
