"""The built-in base model: a Qwen2 of 85 thousand parameters that half knows sums, made and warm-started in seconds.

A randomly initialised model is never rewarded, so GRPO has nothing to reinforce. The warm start teaches both x + y and |x - y|
and prefers the wrong one: the base answers most prompts wrongly, yet samples the right answer often enough to learn from.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tuneline.engines import arithmetic

Progress = Callable[[int, int, float], None]

#: Share of the right answer among the warm start's labels.
RIGHT_SHARE = 0.3
#: Mean loss over answer and end token at which the base knows enough; the labels' own entropy leaves about 0.25.
ENOUGH_LOSS = 0.4
ROUND_STEPS = 300
MAX_STEPS = 3000
PEAK_LEARNING_RATE = 3e-3
REPORT_EVERY = 50

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def build_tokenizer() -> Any:
    """One token a number and word, white space dropped; a `Qwen2Tokenizer` with a chat template.

    transformers loads every tokenizer of a Qwen2 model as a Qwen2Tokenizer, which splits text its own way whatever was saved:
    words of several characters survive that only as added tokens. A marker must be special, or it is lost when loaded again.
    """
    from tokenizers import AddedToken
    from transformers import Qwen2Tokenizer

    numbers = [str(number) for number in range(2 * arithmetic.LIMIT - 1)]
    words = [PAD, START, END, "system", "user", "assistant", "+", "=", *numbers]
    tokenizer = Qwen2Tokenizer(
        vocab={word: index for index, word in enumerate(words)},
        merges=[],
        unk_token=None,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        model_max_length=64,
        padding_side="left",
    )
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in words if len(word) > 1 and "|" not in word])
    return tokenizer


def _build_model(tokenizer: Any) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            attention_dropout=0.0,
            # At this width the usual 0.02 leaves hundreds of steps on a plateau.
            initializer_range=0.06,
            dtype="float32",
        )
    )


def write_model(folder: Path, seed: int, progress: Progress) -> dict[str, Any]:
    """Make the model, warm-start it and save it in Hugging Face format (safetensors) into `folder`.

    Equal seeds give equal bytes on one kind of machine. Global random state and thread count are as before afterwards.

    Args:
        folder: Created if absent.
        seed: Of the initial weights and the warm start's samples.
        progress: Called every REPORT_EVERY steps with (step, most steps, mean loss since the last call).

    Returns:
        parameters, warm_steps and warm_loss, for the artifact's metadata.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            tokenizer = build_tokenizer()
            model = _build_model(tokenizer)
            steps, loss = _warm_start(model, tokenizer, progress)
    finally:
        torch.set_num_threads(threads)
    model.generation_config.do_sample = False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return {"parameters": sum(p.numel() for p in model.parameters()), "warm_steps": steps, "warm_loss": round(loss, 4)}


def _warm_start(model: Any, tokenizer: Any, progress: Progress) -> tuple[int, float]:
    """Rounds of ROUND_STEPS steps until the last steps' mean loss is at most ENOUGH_LOSS; (steps, loss)."""
    import torch

    pairs = arithmetic.prompts()
    prompts = torch.tensor(
        [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": arithmetic.question(x, y)}], add_generation_prompt=True, return_dict=False
            )
            for x, y in pairs
        ]
    )
    rows = torch.arange(len(pairs))
    target = torch.zeros(len(pairs), len(tokenizer))
    for share, answers in ((RIGHT_SHARE, [x + y for x, y in pairs]), (1 - RIGHT_SHARE, [abs(x - y) for x, y in pairs])):
        target[rows, torch.tensor(tokenizer.convert_tokens_to_ids([str(answer) for answer in answers]))] += share
    end = torch.full((len(pairs),), tokenizer.eos_token_id)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.99))
    model.train()
    step, loss = 0, float("inf")
    while step < MAX_STEPS and loss > ENOUGH_LOSS:
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LEARNING_RATE, total_steps=ROUND_STEPS)
        recent: list[float] = []
        for _ in range(ROUND_STEPS):
            answers = torch.multinomial(target, 1)
            logits = model(torch.cat([prompts, answers], dim=1), logits_to_keep=2).logits
            answer_loss = torch.nn.functional.cross_entropy(logits[:, 0], target)
            end_loss = torch.nn.functional.cross_entropy(logits[:, 1], end)
            batch_loss = (answer_loss + end_loss) / 2
            optimizer.zero_grad()
            batch_loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            recent.append(batch_loss.item())
            if step % REPORT_EVERY == 0:
                loss = sum(recent) / len(recent)
                recent.clear()
                progress(step, MAX_STEPS, loss)
    return step, loss
