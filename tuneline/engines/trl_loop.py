"""What every worker of a trl training runs: GRPO with TRL's GRPOTrainer, made to resume bit by bit.

The completions of a step are generated in that step from a prompt order that is a function of seed and step, so a checkpoint
boundary is a generation boundary: weights, optimizer, schedule, step and random state are all that the next step depends on.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist
from torch.utils.data import Sampler
from transformers import AutoTokenizer, PrinterCallback, TrainerCallback, set_seed
from trl import GRPOConfig, GRPOTrainer

from tuneline.core.errors import CheckpointError, JobError, StagingError
from tuneline.core.names import sha256_text
from tuneline.engines import trl_checkpoint
from tuneline.engines.metrics import FROM_TRL
from tuneline.engines.rewards import Reward, load_reward
from tuneline.engines.schedule import accumulation, prompts_of_steps, refuse_long_prompts

_EVAL_ROWS = 128


def train(config: Mapping[str, Any]) -> None:
    """Train on this rank: `config` holds `spec` and `inputs`, each a dict of RunSpec's and TrainingInputs' fields."""
    spec, inputs = config["spec"], config["inputs"]
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    reward = load_reward(spec["train_reward"], inputs["code_dir"])
    attempt, resume = Path(inputs["attempt_dir"]), inputs["resume_from"]
    attempt.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(spec, inputs, reward)
    if resume and trainer.resume_step >= spec["train_steps"]:
        raise CheckpointError(f"{resume} is the last step already", asked=f"training to step {spec['train_steps']}", next_move="use it")
    with open(attempt / "metrics.jsonl", "a", encoding="utf-8") if dist.get_rank() == 0 else open(os.devnull, "w") as lines:
        trainer.lines = lines
        if not resume:
            trainer.write_line({"step": 0, "eval_score": trainer.greedy_score()})
        trainer.train(resume_from_checkpoint=resume or None)


class PromptOrder(Sampler[int]):
    """Row indices of a whole training, as TRL wants them: each prompt once a completion, each step once a micro batch."""

    def __init__(self, *, rows: int, prompts: int, group: int, repeats: int, steps: int, seed: int) -> None:
        self.rows, self.prompts, self.group, self.repeats, self.steps, self.seed = rows, prompts, group, repeats, steps, seed

    def __len__(self) -> int:
        return self.steps * self.repeats * self.prompts * self.group

    def __iter__(self) -> Iterator[int]:
        for chosen in prompts_of_steps(rows=self.rows, prompts=self.prompts, steps=self.steps, seed=self.seed):
            for _ in range(self.repeats):
                for row in chosen:
                    yield from [row] * self.group


class Trainer(GRPOTrainer):
    """GRPOTrainer with this engine's data order, checkpoints, validation and metrics."""

    def __init__(self, spec: Mapping[str, Any], inputs: Mapping[str, Any], reward: Reward) -> None:
        self.spec, self.inputs, self.reward = spec, inputs, reward
        self.lines: TextIO = sys.stdout
        self.tokens_before = 0
        self.resume_step = 0
        resume = inputs["resume_from"]
        if resume:
            state = json.loads((Path(resume) / "trainer_state.json").read_text(encoding="utf-8"))
            self.resume_step, self.tokens_before = state["global_step"], state["num_input_tokens_seen"]
        train_rows, self.test_rows = (read_rows(Path(inputs["dataset_dir"]) / f"{split}.parquet") for split in ("train", "test"))
        tokenizer = AutoTokenizer.from_pretrained(inputs["base_dir"], padding_side="left")
        if tokenizer.chat_template is None:
            raise StagingError(f"the tokenizer in {inputs['base_dir']} has no chat template", next_move="use an instruction-tuned model")
        for split, rows in (("train", train_rows), ("test", self.test_rows)):
            prompts = tokenizer.apply_chat_template([row["prompt"] for row in rows], add_generation_prompt=True, return_dict=True)
            refuse_long_prompts(split, [len(tokens) for tokens in prompts["input_ids"]], spec["train_prompt_tokens"])
        from datasets import Dataset

        super().__init__(
            model=inputs["base_dir"],
            reward_funcs=self._reward_of_trl,
            args=grpo_config(spec, inputs, dist.get_world_size()),
            train_dataset=Dataset.from_list(train_rows),
            processing_class=tokenizer,
            callbacks=[_SaveSteps(spec["train_save_every"])],
        )
        self.remove_callback(PrinterCallback)
        if spec["train_kl_coef"] > 0 and self.ref_model is None:
            raise JobError("train_kl_coef is above 0, but TRL made no reference model", next_move="report this with the versions in use")

    def _reward_of_trl(self, completions: list[list[dict[str, str]]], ground_truth: list[str], **_: Any) -> list[float]:
        return self.reward([messages[0]["content"] for messages in completions], ground_truth)

    def _get_train_sampler(self, dataset: Any = None) -> PromptOrder:
        spec = self.spec
        return PromptOrder(
            rows=len(self.train_dataset),
            prompts=spec["train_batch_size"] // spec["train_group_size"],
            group=spec["train_group_size"],
            repeats=self.args.steps_per_generation,
            steps=spec["train_steps"],
            seed=spec["train_seed"],
        )

    def greedy_score(self) -> float:
        """Mean reward of the greedy answers to test.parquet; every rank calls this, and all get the same number."""
        rank, world_size = dist.get_rank(), dist.get_world_size()
        mine = self.test_rows[rank::world_size]
        rewards: list[float] = []
        training = self.model.training
        self.model.eval()
        for start in range(0, len(mine), _EVAL_ROWS):
            rows = mine[start : start + _EVAL_ROWS]
            rewards += self.reward(self._greedy([row["prompt"] for row in rows]), [row["ground_truth"] for row in rows])
        self.model.train(training)
        total = torch.tensor([sum(rewards), len(rewards)], dtype=torch.float64, device=self.accelerator.device)
        dist.all_reduce(total)
        return float(total[0] / total[1])

    def _greedy(self, prompts: list[Any]) -> list[str]:
        batch = self.processing_class.apply_chat_template(
            prompts, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt", padding=True
        ).to(self.accelerator.device)
        with torch.no_grad():
            tokens = self.model.generate(
                **batch,
                max_new_tokens=self.spec["train_response_tokens"],
                do_sample=False,
                temperature=None,
                top_p=None,
                top_k=None,
                eos_token_id=self.eos_token_ids,
                pad_token_id=self.processing_class.pad_token_id,
            )
        answers: list[str] = self.processing_class.batch_decode(tokens[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        return answers

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """TRL's log, then this step's line; the last step's line carries the validation score."""
        super().log(logs, start_time)
        if "loss" not in logs:
            return
        step = self.state.global_step
        for name in ("loss", "grad_norm"):
            if not math.isfinite(logs[name]):
                raise JobError(f"{name} is {logs[name]} at step {step}: training has diverged", next_move="lower train_learning_rate")
        line: dict[str, float] = {"step": step}
        line |= {ours: logs[theirs] for theirs, ours in FROM_TRL.items() if isinstance(logs.get(theirs), (int, float))}
        line["tokens_per_s"] = (logs["num_tokens"] - self.tokens_before) / max(logs["step_time"], 1e-9)
        self.tokens_before = int(logs["num_tokens"])
        if step == self.spec["train_steps"]:
            line["eval_score"] = self.greedy_score()
        self.write_line(line)

    def write_line(self, line: Mapping[str, float]) -> None:
        """Append one line to metrics.jsonl (rank 0), and show it in the job's log."""
        text = json.dumps(line)
        self.lines.write(text + "\n")
        self.lines.flush()
        if dist.get_rank() == 0:
            print(text, flush=True)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        state = {key: value for key, value in vars(self.state).items() if key != "log_history" and _is_json(value)}
        trl_checkpoint.save(
            Path(self.inputs["attempt_dir"]) / f"step_{self.state.global_step}",
            step=self.state.global_step,
            model=self.model,
            optimizer=_inner(self.optimizer),
            scheduler=_inner(self.lr_scheduler),
            trainer_state=state,
            base=Path(self.inputs["base_dir"]),
            tokenizer_files=tokenizer_files(Path(self.inputs["base_dir"]), self.processing_class),
        )

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        trl_checkpoint.load_weights(Path(resume_from_checkpoint), self.model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint:
            trl_checkpoint.load_optimizer(Path(checkpoint), self.model, _inner(self.optimizer), _inner(self.lr_scheduler))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        rank = dist.get_rank()
        if checkpoint and not trl_checkpoint.restore_rng(Path(checkpoint), rank, dist.get_world_size()):
            set_seed(int(sha256_text(f"{self.spec['train_seed']}/{self.resume_step}/{rank}")[:8], 16))


class _SaveSteps(TrainerCallback):
    def __init__(self, every: int) -> None:
        self.every = every

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        control.should_save = state.global_step % self.every == 0 or state.global_step == state.max_steps
        return control


def grpo_config(spec: Mapping[str, Any], inputs: Mapping[str, Any], world_size: int) -> GRPOConfig:
    """TRL's configuration: one generation a step, everything that reports or saves by itself off."""
    use_gpu = dist.get_backend() == "nccl"
    completions = spec["train_batch_size"] // world_size
    accumulate = accumulation(completions, spec["train_prompt_tokens"] + spec["train_response_tokens"])
    return GRPOConfig(
        output_dir=inputs["attempt_dir"],
        max_steps=spec["train_steps"],
        per_device_train_batch_size=completions // accumulate,
        gradient_accumulation_steps=accumulate,
        num_generations=spec["train_group_size"],
        num_iterations=1,
        max_completion_length=spec["train_response_tokens"],
        temperature=spec["train_temperature"],
        beta=spec["train_kl_coef"],
        learning_rate=spec["train_learning_rate"],
        lr_scheduler_type="linear",
        optim="adamw_torch",
        seed=spec["train_seed"],
        data_seed=spec["train_seed"],
        use_cpu=not use_gpu,
        ddp_backend="nccl" if use_gpu else "gloo",
        # Keeps DDP from regrouping gradients after its first step: from three workers on, the order in which an element's gradients
        # are added depends on its place in a group, and a resumed run has its first step later.
        ddp_find_unused_parameters=True,
        bf16=use_gpu,
        gradient_checkpointing=use_gpu,
        model_init_kwargs={"dtype": "float32"},
        dataloader_num_workers=0,
        dataloader_pin_memory=use_gpu,
        use_vllm=False,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def read_rows(path: Path) -> list[dict[str, Any]]:
    """`prompt` (chat messages) and `ground_truth` of every row of a parquet file in verl's schema."""
    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=["prompt", "reward_model"])
    return [{"prompt": row["prompt"], "ground_truth": str(row["reward_model"]["ground_truth"])} for row in table.to_pylist()]


def tokenizer_files(base: Path, tokenizer: Any) -> list[str]:
    """Names of the files in `base` that make its tokenizer."""
    named = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"}
    named |= {"chat_template.json", "vocab.json", "merges.txt", "tokenizer.model"} | set(tokenizer.vocab_files_names.values())
    return sorted(name for name in named if (base / name).is_file())


def _inner(prepared: Any) -> Any:
    """The optimizer or scheduler inside Accelerate's wrapper, or itself."""
    return (
        getattr(prepared, "optimizer", getattr(prepared, "scheduler", prepared))
        if type(prepared).__module__.startswith("accelerate")
        else prepared
    )


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True
