"""A base model of Qwen2.5-0.5B's geometry that half knows sums: the tiny model's tokenizer and warm start, at 360 million parameters.

python bench/gpu/half_billion.py FOLDER
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from tuneline.engines import arithmetic, tiny_qwen2

LEARNING_RATE = 2e-4
STEPS = 400


def main(folder: Path) -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = tiny_qwen2.build_tokenizer()
    # Qwen2.5-0.5B's config.json, less its vocabulary.
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = Qwen2ForCausalLM(config).to(device)
    pairs = arithmetic.prompts()
    prompts = torch.tensor(
        [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": arithmetic.question(x, y)}], add_generation_prompt=True, return_dict=False
            )
            for x, y in pairs
        ],
        device=device,
    )
    target = torch.zeros(len(pairs), len(tokenizer), device=device)
    rows = torch.arange(len(pairs), device=device)
    share = tiny_qwen2.RIGHT_SHARE
    for weight, answers in ((share, [x + y for x, y in pairs]), (1 - share, [abs(x - y) for x, y in pairs])):
        target[rows, torch.tensor(tokenizer.convert_tokens_to_ids([str(answer) for answer in answers]), device=device)] += weight
    end = torch.full((len(pairs),), tokenizer.eos_token_id, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=STEPS)
    started = time.perf_counter()
    for step in range(1, STEPS + 1):
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(torch.cat([prompts, torch.multinomial(target, 1)], dim=1), logits_to_keep=2).logits.float()
        cross = torch.nn.functional.cross_entropy
        loss = (cross(logits[:, 0], target) + cross(logits[:, 1], end)) / 2
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"warm start step {step}/{STEPS} loss {loss.item():.3f}", flush=True)
    model.generation_config.do_sample = False
    model.cpu().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"warm start: {count:,} parameters, {STEPS} steps, {time.perf_counter() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
