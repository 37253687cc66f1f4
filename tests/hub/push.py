"""Pushes models, tokenizers, adapters and a training run to the double that HF_ENDPOINT names.

task: {"folder": where to save, "expected": where outputs go}. Runs with hf_variants imported.
"""

import json
import sys
from pathlib import Path

import torch
from huggingface_hub import HfApi
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

import hf_variants
from tests.hub.load_clean import outputs
from tests.tokenizers_for_tests import byte_level_bpe
from tests.variants import build, draw_ids, tiny, tiny_pair

OWN_CARD = "---\nlicense: mit\n---\n# Mine\n\nWords of my own.\n"
EDITED = "Words below the numbers."


def remember(model, folder, name):
    ids = draw_ids(2, 21)
    save_file({"ids": ids, "outputs": outputs(model.eval(), ids)}, Path(folder) / f"{name}.safetensors")


def push_plain(folder):
    model = build(tiny("mla_yarn", vocab_size=400))
    remember(model, folder, "private")
    model.push_to_hub("me/private", private=True)
    byte_level_bpe().push_to_hub("me/private")
    return model


def push_sharded(folder):
    model = build(tiny("moe_bias_balance"))
    remember(model, folder, "sharded")
    model.push_to_hub("me/sharded", max_shard_size="20KB", tags=["small"])


def push_branches(folder):
    first, second = build(tiny("alibi"), seed=1), build(tiny("alibi"), seed=2)
    remember(first, folder, "branch_main")
    remember(second, folder, "branch_dev")
    first.push_to_hub("me/branch")
    second.push_to_hub("me/branch", revision="dev")


def push_from_save(folder):
    model = build(tiny("nested_theta"), hf_variants.VariantsForSequenceClassification)
    remember(model, folder, "saved")
    model.save_pretrained(Path(folder) / "saved", push_to_hub=True, repo_id="me/saved")
    tiny("gqa").save_pretrained(f"{folder}/config", push_to_hub=True, repo_id="me/config")


def push_pair(folder):
    model = build(tiny_pair(share_embeddings=False))
    remember(model, folder, "pair")
    model.push_to_hub("me/pair")
    byte_level_bpe().push_to_hub("me/pair")


def push_over_cards():
    """Over a card that the user wrote, and over ours with words added and metadata set."""
    api = HfApi()
    model = build(tiny("gqa"))
    api.create_repo("me/own")
    api.upload_file(path_or_fileobj=OWN_CARD.encode(), path_in_repo="README.md", repo_id="me/own")
    model.push_to_hub("me/own")
    model.push_to_hub("me/edited")
    path = api.hf_hub_download("me/edited", "README.md")
    text = Path(path).read_text().replace("library_name", "license: mit\nlibrary_name") + f"\n{EDITED}\n"
    api.upload_file(path_or_fileobj=text.encode(), path_in_repo="README.md", repo_id="me/edited")
    build(tiny("mla")).push_to_hub("me/edited")


def push_training(folder):
    """A plain Trainer, which pushes checkpoints while it trains and a draft of a card at the end."""
    model = build(tiny("moe_bias_balance"))
    rows = [{"input_ids": row, "labels": row} for row in draw_ids(8, 12)]
    arguments = TrainingArguments(
        output_dir=Path(folder) / "run",
        max_steps=2,
        save_steps=1,
        per_device_train_batch_size=2,
        push_to_hub=True,
        hub_model_id="me/trainer",
        hub_strategy="checkpoint",
        hub_always_push=True,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, processing_class=byte_level_bpe())
    trainer.train()
    trainer._finish_current_push()
    during = sorted(HfApi().list_repo_files("me/trainer"))
    trainer.push_to_hub(dataset="verses")
    remember(model, folder, "trainer")
    return during


def push_adapter(folder):
    from peft import LoraConfig, get_peft_model

    base = AutoModelForCausalLM.from_pretrained("me/private")
    config = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    model = get_peft_model(base, config)
    remember(model, folder, "adapter")
    model.push_to_hub("me/adapter")
    return base.config._name_or_path


def main():
    task = json.loads(Path(sys.argv[1]).read_text())
    folder = task["folder"]
    torch.manual_seed(0)
    push_plain(folder)
    push_sharded(folder)
    push_branches(folder)
    push_from_save(folder)
    push_pair(folder)
    push_over_cards()
    during = push_training(folder)
    base_name = push_adapter(folder)
    # fine-tuned from a repo, and pushed to another and back to its own
    tuned = AutoModelForCausalLM.from_pretrained("me/private")
    tuned.push_to_hub("me/tuned")
    tuned.push_to_hub("me/private")
    tokenizer = AutoTokenizer.from_pretrained("me/private")
    result = {"during": during, "base_name": base_name, "tokenizer": type(tokenizer).__name__}
    Path(sys.argv[2]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
