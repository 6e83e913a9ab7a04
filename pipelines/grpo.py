"""The graph of a GRPO run. Only a graph: flows live in tuneline.tasks."""

from kfp import dsl

from components.cleanup import cleanup
from components.convert import convert
from components.evaluate import evaluate
from components.images import SIZES, SMALL
from components.launch_raycluster import launch_raycluster
from components.preflight import preflight
from components.provision_cluster import provision_cluster
from components.provision_filesystem import provision_filesystem
from components.provision_network import provision_network
from components.provision_storage import provision_storage
from components.register import register
from components.release_gpus import release_gpus
from components.stage_code import stage_code
from components.stage_dataset import stage_dataset
from components.stage_model import stage_model
from components.train import train


def _task(task: dsl.PipelineTask, *, cached: bool = False, retries: int = 0) -> dsl.PipelineTask:
    """Caching is said for every task: what owns a live resource is never served from the cache."""
    cpu, memory = SIZES.get(task.name, SMALL)
    task.set_caching_options(cached).set_cpu_limit(cpu).set_memory_limit(memory)
    return task.set_retry(retries, backoff_duration="1s", backoff_factor=1) if retries else task


@dsl.pipeline(
    name="tuneline-grpo", description="GRPO post-training: stage, train, convert, evaluate, register; GPUs come last and go first."
)
def grpo(
    infra_platform: str = "local",
    infra_project: str = "",
    infra_region: str = "",
    infra_zone: str = "",
    infra_cpu_zones: str = "",
    infra_cluster_kind: str = "standard",
    infra_name: str = "tuneline",
    infra_network: str = "default",
    infra_namespace: str = "tuneline",
    infra_service_account: str = "tuneline",
    infra_release_channel: str = "rapid",
    infra_filesystem: str = "gcsfuse",
    infra_lustre_gib: int = 18000,
    infra_lustre_throughput: int = 500,
    infra_account_network: str = "",
    infra_account_cluster: str = "",
    infra_account_storage: str = "",
    infra_account_secrets: str = "",
    gpu_machine: str = "",
    gpu_nodes: int = 2,
    gpu_provisioning: str = "reservation",
    gpu_reservation: str = "",
    gpu_max_run_hours: float = 168.0,
    gpu_image: str = "",
    gpu_nccl_check: bool = True,
    gpu_workers: int = 2,
    gpu_ready_minutes: float = 5.0,
    model_id: str = "tiny-qwen2",
    model_revision: str = "",
    model_seed: int = 0,
    data_id: str = "arithmetic",
    data_revision: str = "",
    data_adapter: str = "verl",
    data_seed: int = 0,
    train_engine: str = "trl",
    train_engine_version: str = "",
    train_steps: int = 100,
    train_save_every: int = 50,
    train_learning_rate: float = 1e-06,
    train_batch_size: int = 128,
    train_group_size: int = 16,
    train_mini_batch: int = 0,
    train_micro_batch: int = 0,
    train_tensor_parallel: int = 1,
    train_generation_nodes: int = 0,
    train_generation_memory: float = 0.6,
    train_offload: bool = False,
    train_lora_rank: int = 0,
    train_prompt_tokens: int = 512,
    train_response_tokens: int = 512,
    train_temperature: float = 1.0,
    train_kl_coef: float = 0.0,
    train_reward: str = "gsm8k",
    train_tools: str = "",
    train_agent_loop: str = "",
    train_max_turns: int = 1,
    train_extra: str = "",
    train_code_uri: str = "",
    train_seed: int = 0,
    train_attempts: int = 3,
    train_stall_minutes: float = 15.0,
    train_deadline_hours: float = 120.0,
    train_flat_steps: int = 20,
    train_min_entropy: float = 0.0,
    train_wandb_secret: str = "",
    train_force: bool = False,
    output_root: str = "",
    output_model_name: str = "tuneline-model",
    output_shard_mb: int = 5000,
    output_min_score: float = 0.0,
    output_min_gain: float = 0.0,
    ops_cleanup_policy: str = "gpus",
    ops_rerun_token: str = "",
):
    """GRPO post-training from base model and data set to a registered Hugging Face model.

    Args:
        infra_platform: Where the run happens: this computer, or Google Kubernetes Engine.
        infra_project: Google Cloud project id.
        infra_region: Region of the cluster, subnets and bucket.
        infra_zone: Zone of the GPUs and of Lustre; the RoCE network profile is this zone's.
        infra_cpu_zones: Zones of the CPU pool, comma separated; '' lets GKE choose in the region.
        infra_cluster_kind: Kind of GKE cluster.
        infra_name: Name of the cluster and prefix of the networks and the file system that runs share.
        infra_network: VPC of the cluster; made if it is not there and starts with infra_name.
        infra_namespace: Kubernetes namespace of the run.
        infra_service_account: Kubernetes service account that reads and writes the bucket.
        infra_release_channel: GKE release channel of a cluster that is made.
        infra_filesystem: What workers see at /data: the bucket by GCS FUSE, or Managed Lustre.
        infra_lustre_gib: Capacity of a Lustre instance that is made. [GiB]
        infra_lustre_throughput: Throughput of Lustre for each TiB. [MB/s per TiB]
        infra_account_network: Service account impersonated for networks and firewalls; '' for the caller's own.
        infra_account_cluster: Service account impersonated for clusters, pools and what is in them; '' for the caller's own.
        infra_account_storage: Service account impersonated for buckets and Lustre; '' for the caller's own.
        infra_account_secrets: Service account impersonated for Secret Manager; '' for the caller's own.
        gpu_machine: GPU machine type; '' for CPU workers.
        gpu_nodes: GPU nodes of the run. [nodes]
        gpu_provisioning: How GPU nodes are bought.
        gpu_reservation: Reservation: NAME or projects/P/reservations/NAME, with /reservationBlocks/B to pin a block.
        gpu_max_run_hours: Longest life of flex-start nodes. [hours]
        gpu_image: Container image of Ray head and workers, by digest; '' takes the engine's own.
        gpu_nccl_check: Measure all-reduce bandwidth before training and refuse a slow cluster.
        gpu_workers: Training processes of the trl engine; verl and nemo_rl use every GPU. [processes]
        gpu_ready_minutes: How long the Ray cluster may take to be ready. [minutes]
        model_id: Base model: tiny-qwen2 (made here), an absolute folder, or a Hugging Face id.
        model_revision: Revision of a Hugging Face model; '' takes its main branch and records the commit.
        model_seed: Seed of the weights and warm start of a model that is made here.
        data_id: Data set: arithmetic (made here), an absolute folder, or a Hugging Face id.
        data_revision: Revision of a Hugging Face data set; '' takes its main branch and records the commit.
        data_adapter: How rows become prompts: verl (verl's parquet schema as it is) or gsm8k (question, answer).
        data_seed: Seed of a data set that is made here: which prompts are held out.
        train_engine: What trains: trl (CPU or small), verl or nemo_rl (GPU nodes).
        train_engine_version: Version of verl or NeMo RL; '' takes 0.6.1 (0.9.1 on A4X) or v0.5.0.
        train_steps: Optimizer steps. [steps]
        train_save_every: Steps between checkpoints; the last step is always saved. [steps]
        train_learning_rate: Peak learning rate of AdamW.
        train_batch_size: Completions per step over all workers. [completions]
        train_group_size: Completions per prompt: the group whose mean is the baseline. [completions]
        train_mini_batch: Completions per optimizer update; 0 for one update a step with all of them. [completions]
        train_micro_batch: Completions in one pass of a GPU; 0 chooses by their length. [completions]
        train_tensor_parallel: GPUs that share one copy of the model while generating, and in nemo_rl while training. [GPUs]
        train_generation_nodes: Nodes that only generate (nemo_rl); 0 generates where it trains. [nodes]
        train_generation_memory: Part of a GPU's memory that generating may fill.
        train_offload: Keep weights and optimizer in CPU memory while generating.
        train_lora_rank: Rank of LoRA adapters; 0 trains every weight.
        train_prompt_tokens: Longest prompt; a longer one is refused before the first step. [tokens]
        train_response_tokens: Longest completion. [tokens]
        train_temperature: Sampling temperature of the rollouts.
        train_kl_coef: Weight of the KL term against the base model; 0 trains without a reference.
        train_reward: Reward: gsm8k (number after ####), exact (whole answer), or module:function from train_code_uri.
        train_tools: Tool configuration (YAML) in train_code_uri that the model may call (verl); '' for none.
        train_agent_loop: Agent loop of user code (verl): FILE.yaml:NAME in train_code_uri; '' for verl's own.
        train_max_turns: Most answers of the model in one conversation. [turns]
        train_extra: Further settings of the engine: KEY=VALUE separated by spaces; keys are checked.
        train_code_uri: Absolute folder with user code, put on the path of every worker; '' for none.
        train_seed: Seed of sampling and data order.
        train_attempts: Attempts of the training job before the run fails. [attempts]
        train_stall_minutes: Longest time without a new step before the job is stopped. [minutes]
        train_deadline_hours: Longest time for training, all attempts together. [hours]
        train_flat_steps: Steps in a row without a difference between rewards before the job is stopped; 0 never stops it. [steps]
        train_min_entropy: Entropy of the policy below which the job is stopped; 0 never stops it. [nats]
        train_wandb_secret: Secret Manager name of a Weights & Biases key; '' logs to the console and TensorBoard.
        train_force: Train again even where a complete checkpoint of the same training exists.
        output_root: Where models, data, checkpoints, runs lie: gs://BUCKET[/FOLDER] on gke, else an absolute folder.
        output_model_name: Name under which the model is registered.
        output_shard_mb: Largest safetensors shard. [MB]
        output_min_score: Lowest validation score that lets a model be registered. [score]
        output_min_gain: Lowest gain over the base model's validation score that lets it be registered. [score]
        ops_cleanup_policy: What the exit task removes: gpus, all that this run made (never models, data, checkpoints), or none.
        ops_rerun_token: Any new text makes cached tasks run again.
    """
    job_name = dsl.PIPELINE_JOB_NAME_PLACEHOLDER
    ended = _task(
        cleanup(
            job_name=job_name,
            infra_platform=infra_platform,
            infra_project=infra_project,
            infra_region=infra_region,
            infra_account_storage=infra_account_storage,
            output_root=output_root,
        )
    )
    with dsl.ExitHandler(ended, name="run"):
        # fmt: off
        checked = _task(preflight(
            job_name=job_name,
            infra_platform=infra_platform, infra_project=infra_project, infra_region=infra_region, infra_zone=infra_zone,
            infra_cpu_zones=infra_cpu_zones, infra_cluster_kind=infra_cluster_kind, infra_name=infra_name,
            infra_network=infra_network, infra_namespace=infra_namespace, infra_service_account=infra_service_account,
            infra_release_channel=infra_release_channel, infra_filesystem=infra_filesystem, infra_lustre_gib=infra_lustre_gib,
            infra_lustre_throughput=infra_lustre_throughput, infra_account_network=infra_account_network,
            infra_account_cluster=infra_account_cluster, infra_account_storage=infra_account_storage,
            infra_account_secrets=infra_account_secrets, gpu_machine=gpu_machine, gpu_nodes=gpu_nodes,
            gpu_provisioning=gpu_provisioning, gpu_reservation=gpu_reservation, gpu_max_run_hours=gpu_max_run_hours,
            gpu_image=gpu_image, gpu_nccl_check=gpu_nccl_check, gpu_workers=gpu_workers, gpu_ready_minutes=gpu_ready_minutes,
            model_id=model_id, model_revision=model_revision, model_seed=model_seed, data_id=data_id, data_revision=data_revision,
            data_adapter=data_adapter, data_seed=data_seed, train_engine=train_engine, train_engine_version=train_engine_version,
            train_steps=train_steps, train_save_every=train_save_every, train_learning_rate=train_learning_rate,
            train_batch_size=train_batch_size, train_group_size=train_group_size, train_mini_batch=train_mini_batch,
            train_micro_batch=train_micro_batch, train_tensor_parallel=train_tensor_parallel,
            train_generation_nodes=train_generation_nodes, train_generation_memory=train_generation_memory,
            train_offload=train_offload, train_lora_rank=train_lora_rank, train_prompt_tokens=train_prompt_tokens,
            train_response_tokens=train_response_tokens, train_temperature=train_temperature, train_kl_coef=train_kl_coef,
            train_reward=train_reward, train_tools=train_tools, train_agent_loop=train_agent_loop, train_max_turns=train_max_turns,
            train_extra=train_extra, train_code_uri=train_code_uri, train_seed=train_seed, train_attempts=train_attempts,
            train_stall_minutes=train_stall_minutes, train_deadline_hours=train_deadline_hours, train_flat_steps=train_flat_steps,
            train_min_entropy=train_min_entropy, train_wandb_secret=train_wandb_secret, train_force=train_force,
            output_root=output_root, output_model_name=output_model_name, output_shard_mb=output_shard_mb,
            output_min_score=output_min_score, output_min_gain=output_min_gain, ops_cleanup_policy=ops_cleanup_policy,
            ops_rerun_token=ops_rerun_token,
        ))
        # fmt: on
        spec = checked.outputs["spec"]
        storage = _task(provision_storage(spec=spec, job_name=job_name), retries=2)
        # What is made is recorded in the store, so the store comes first: without it the exit task would know of nothing.
        network = _task(provision_network(spec=spec, job_name=job_name), retries=2).after(storage)
        cluster = _task(provision_cluster(spec=spec, job_name=job_name), retries=2).after(network)
        filesystem = _task(provision_filesystem(spec=spec, job_name=job_name), retries=2).after(network)

        # What is cached takes only what determines its bytes: never the job's name, never a provision output.
        model = _task(
            stage_model(
                output_root=output_root,
                model_id=model_id,
                model_revision=model_revision,
                model_seed=model_seed,
                ops_rerun_token=ops_rerun_token,
            ),
            cached=True,
            retries=2,
        ).after(storage)
        dataset = _task(
            stage_dataset(
                output_root=output_root,
                data_id=data_id,
                data_revision=data_revision,
                data_adapter=data_adapter,
                data_seed=data_seed,
                ops_rerun_token=ops_rerun_token,
            ),
            cached=True,
            retries=2,
        ).after(storage)
        code = _task(stage_code(spec=spec, job_name=job_name), retries=2).after(storage)
        staged = {"model": model.outputs["model"], "dataset": dataset.outputs["dataset"], "code": code.outputs["code"]}

        # GPUs come last and go first.
        ray = _task(launch_raycluster(spec=spec, job_name=job_name, **staged), retries=2).after(cluster, filesystem)
        trained = _task(train(spec=spec, job_name=job_name, training_key=ray.output, **staged), retries=3)
        _task(release_gpus(spec=spec, job_name=job_name), retries=2).after(trained)

        converted = _task(
            convert(
                output_root=output_root,
                output_shard_mb=output_shard_mb,
                ops_rerun_token=ops_rerun_token,
                model=model.outputs["model"],
                checkpoint=trained.outputs["checkpoint"],
            ),
            cached=True,
            retries=2,
        )
        evaluated = _task(evaluate(spec=spec, job_name=job_name, checkpoint=trained.outputs["checkpoint"]), retries=1)
        # kfp.local resolves no named output in a condition: evaluate's answer is its one return value.
        with dsl.If(evaluated.outputs["Output"] == True, name="passed"):  # noqa: E712
            _task(
                register(
                    spec=spec,
                    job_name=job_name,
                    hf_model=converted.outputs["hf_model"],
                    metrics=evaluated.outputs["metrics"],
                ),
                retries=2,
            )
