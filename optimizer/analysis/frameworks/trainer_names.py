"""The names of a Lightning Trainer's arguments: today's, and what became of those of older versions.

https://lightning.ai/docs/pytorch/stable/common/trainer.html and https://lightning.ai/docs/pytorch/stable/upgrade/from_1_9.html
"""

from __future__ import annotations

RENAMED = {
    "max_nb_epochs": "max_epochs",
    "min_nb_epochs": "min_epochs",
    "nb_sanity_val_steps": "num_sanity_val_steps",
    "nb_gpu_nodes": "num_nodes",
    "num_gpu_nodes": "num_nodes",
    "train_percent_check": "limit_train_batches",
    "val_percent_check": "limit_val_batches",
    "test_percent_check": "limit_test_batches",
    "overfit_pct": "overfit_batches",
    "row_log_interval": "log_every_n_steps",
    "default_save_path": "default_root_dir",
    "replace_sampler_ddp": "use_distributed_sampler",
}
WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    "amp_backend": ("native", None),
    "amp_level": (None,),
    "auto_lr_find": (False,),
    "auto_scale_batch_size": (False, None),
    "auto_select_gpus": (False,),
    "early_stop_callback": (False, None),
    "flush_logs_every_n_steps": (None,),
    "ipus": (None,),
    "log_gpu_memory": (None, False),
    "max_steps": (None,),
    "move_metrics_to_cpu": (False,),
    "multiple_trainloader_mode": ("max_size_cycle",),
    "prepare_data_per_node": (True, None),
    "process_position": (0,),
    "reload_dataloaders_every_epoch": (False,),
    "resume_from_checkpoint": (None,),
    "stochastic_weight_avg": (False,),
    "terminate_on_nan": (False, None),
    "track_grad_norm": (-1,),
    "truncated_bptt_steps": (None,),
    "use_amp": (False,),
    "weights_save_path": (None,),
}
"""Arguments that are gone, and the values with which they said nothing."""
INSTEAD = {
    "amp_backend": "NVIDIA Apex is no longer supported",
    "auto_lr_find": "`Tuner(trainer).lr_find(...)` does it",
    "auto_scale_batch_size": "`Tuner(trainer).scale_batch_size(...)` does it",
    "auto_select_gpus": "`devices=find_usable_cuda_devices(n)` does it",
    "early_stop_callback": "an `EarlyStopping` in `callbacks` does it",
    "log_gpu_memory": "the callback `DeviceStatsMonitor` does it",
    "resume_from_checkpoint": "`trainer.fit(..., ckpt_path=...)` takes it",
    "stochastic_weight_avg": "the callback `StochasticWeightAveraging` does it",
    "track_grad_norm": "log `grad_norm(...)` in `on_before_optimizer_step`",
    "use_amp": '`precision="16-mixed"` does it',
}
CURRENT = frozenset(
    "accelerator strategy devices num_nodes precision logger callbacks fast_dev_run max_epochs min_epochs max_steps min_steps "
    "max_time limit_train_batches limit_val_batches limit_test_batches limit_predict_batches overfit_batches "
    "val_check_interval check_val_every_n_epoch num_sanity_val_steps log_every_n_steps enable_checkpointing "
    "enable_progress_bar enable_model_summary accumulate_grad_batches gradient_clip_val gradient_clip_algorithm deterministic "
    "benchmark inference_mode use_distributed_sampler profiler detect_anomaly barebones plugins sync_batchnorm "
    "reload_dataloaders_every_n_epochs default_root_dir enable_autolog_hparams model_registry".split()
)
"""Of Lightning 2.6."""
