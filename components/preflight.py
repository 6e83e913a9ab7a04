"""The first task: every fault before anything costs."""

from typing import NamedTuple

from kfp import dsl

from components.images import SENTINEL

# fmt: off


@dsl.component(base_image=SENTINEL, install_kfp_package=False)
def preflight(
    job_name: str, infra_platform: str, infra_project: str, infra_region: str, infra_zone: str, infra_cpu_zones: str,
    infra_cluster_kind: str, infra_name: str, infra_network: str, infra_namespace: str, infra_service_account: str,
    infra_release_channel: str, infra_filesystem: str, infra_lustre_gib: int, infra_lustre_throughput: int,
    infra_account_network: str, infra_account_cluster: str, infra_account_storage: str, infra_account_secrets: str,
    gpu_machine: str, gpu_nodes: int, gpu_provisioning: str, gpu_reservation: str, gpu_max_run_hours: float, gpu_image: str,
    gpu_nccl_check: bool, gpu_workers: int, gpu_ready_minutes: float, model_id: str, model_revision: str, model_seed: int,
    data_id: str, data_revision: str, data_adapter: str, data_seed: int, train_engine: str, train_engine_version: str,
    train_steps: int, train_save_every: int, train_learning_rate: float, train_batch_size: int, train_group_size: int,
    train_mini_batch: int, train_micro_batch: int, train_tensor_parallel: int, train_generation_nodes: int,
    train_generation_memory: float, train_offload: bool, train_lora_rank: int, train_prompt_tokens: int, train_response_tokens: int,
    train_temperature: float, train_kl_coef: float, train_reward: str, train_tools: str, train_agent_loop: str,
    train_max_turns: int, train_extra: str, train_code_uri: str, train_seed: int, train_attempts: int, train_stall_minutes: float,
    train_deadline_hours: float, train_flat_steps: int, train_min_entropy: float, train_wandb_secret: str, train_force: bool,
    output_root: str, output_model_name: str, output_shard_mb: int, output_min_score: float, output_min_gain: float,
    ops_cleanup_policy: str, ops_rerun_token: str,
) -> NamedTuple("Checked", spec=str, run_id=str):
    """Checks every parameter and what the run needs. Returns the whole spec as JSON, and the run's id."""
    parameters = dict(locals())
    from tuneline.tasks import preflight as task

    return task.run(parameters)
