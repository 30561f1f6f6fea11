"""Settings of several sections that do not go together."""

from pipeline.config import Config


def problem(config: Config) -> str | None:
    """What is wrong with numbers of rows, workers and GPUs, and with what needs other settings; None if nothing is."""
    training, workers, use_gpu = config.training, config.scaling.workers, config.scaling.use_gpu
    if training.global_batch_size is not None and training.global_batch_size < workers:
        return (
            f"training.global_batch_size: {training.global_batch_size} is less than scaling.workers {workers}; each "
            "worker needs a row of every step"
        )
    if training.early_stopping_patience is not None and config.data.validation is None:
        return "training.early_stopping_patience: needs data.validation, which is not given"
    if config.metrics.best is not None and config.data.validation is None and config.run.train_func is None:
        return "metrics.best: needs data.validation, which is not given"
    if training.class_weights is not None and config.model.task != "text-classification":
        return f"training.class_weights: only for text-classification, not for {config.model.task}"
    gpus = config.scaling.resources_per_worker.get("GPU")
    if use_gpu != "auto" and gpus is not None and use_gpu != (gpus > 0):
        return (
            f"scaling.resources_per_worker.GPU: {gpus:g} with scaling.use_gpu {str(use_gpu).lower()}; give one of the "
            "two"
        )
    return None
