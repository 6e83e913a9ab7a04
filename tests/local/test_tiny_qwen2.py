"""The built-in base model, as transformers loads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tuneline.engines import arithmetic, tiny_qwen2


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[tuple[int, int, float]]]:
    folder, told = tmp_path_factory.mktemp("models") / "a", []
    result = tiny_qwen2.write_model(folder, 3, lambda *progress: told.append(progress))
    return folder, result, told


def test_the_warm_start_ends_when_the_base_knows_enough(made: tuple[Path, dict[str, Any], list[tuple[int, int, float]]]) -> None:
    _, result, told = made
    assert result["warm_loss"] <= tiny_qwen2.ENOUGH_LOSS
    assert told[-1] == (result["warm_steps"], tiny_qwen2.MAX_STEPS, pytest.approx(result["warm_loss"], abs=1e-4))
    assert [step for step, _, _ in told] == list(range(tiny_qwen2.REPORT_EVERY, result["warm_steps"] + 1, tiny_qwen2.REPORT_EVERY))


def test_the_loaded_tokenizer_is_the_saved_one(made: tuple[Path, dict[str, Any], list[tuple[int, int, float]]]) -> None:
    from transformers import AutoTokenizer

    built, loaded = tiny_qwen2.build_tokenizer(), AutoTokenizer.from_pretrained(made[0])
    for x, y in [(3, 4), (12, 18), (0, 9)]:
        chat = [{"role": "user", "content": arithmetic.question(x, y)}]
        expected = ["<|im_start|>", "user", str(x), "+", str(y), "=", "<|im_end|>", "<|im_start|>", "assistant"]
        for tokenizer in (built, loaded):
            ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
            assert tokenizer.convert_ids_to_tokens(ids) == expected
    for number in range(2 * arithmetic.LIMIT - 1):
        ids = [loaded.convert_tokens_to_ids(str(number)), loaded.eos_token_id]
        assert loaded.decode(ids, skip_special_tokens=True) == str(number)


def test_the_loaded_model_knows_both_answers_and_prefers_the_wrong_one(
    made: tuple[Path, dict[str, Any], list[tuple[int, int, float]]],
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(made[0]), AutoModelForCausalLM.from_pretrained(made[0])
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    chat = [{"role": "user", "content": arithmetic.question(7, 4)}]
    with torch.no_grad():
        logits = model(torch.tensor([tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)])).logits
    share = logits[0, -1].softmax(0)
    right, wrong = (float(share[tokenizer.convert_tokens_to_ids(number)]) for number in ("11", "3"))
    assert right == pytest.approx(tiny_qwen2.RIGHT_SHARE, abs=0.1)
    assert wrong == pytest.approx(1 - tiny_qwen2.RIGHT_SHARE, abs=0.1)


def test_the_seed_decides_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(tiny_qwen2, "ROUND_STEPS", 10)
    monkeypatch.setattr(tiny_qwen2, "MAX_STEPS", 20)
    monkeypatch.setattr(tiny_qwen2, "REPORT_EVERY", 10)
    random_before, threads_before = torch.get_rng_state(), torch.get_num_threads()
    results = {name: tiny_qwen2.write_model(tmp_path / name, seed, lambda *_: None) for name, seed in (("a", 1), ("b", 1), ("c", 2))}
    assert results["a"]["warm_steps"] == 20
    contents = [{path.name: path.read_bytes() for path in sorted((tmp_path / name).iterdir())} for name in "abc"]
    assert contents[0] == contents[1]
    assert contents[0]["model.safetensors"] != contents[2]["model.safetensors"]
    assert torch.equal(torch.get_rng_state(), random_before)
    assert torch.get_num_threads() == threads_before
