"""The model card: what it says is true of the model, and what a user wrote is never overwritten."""

import pytest
import torch
from huggingface_hub import ModelCard, ModelCardData

import hf_variants
from hf_variants.analysis import kv_cache_size
from hf_variants.hub import card_section, write_card
from hf_variants.hub.card import _BLANK_DESCRIPTION, BEGIN, END
from hf_variants.hub.card_facts import HEADS, parameters_of, repo_of_origin, toggles_of
from hf_variants.hub.quantization_facts import quantization_of
from tests.variants import ENCODERS, TOGGLES, build, tiny


def read(directory):
    return (directory / "README.md").read_text()


@pytest.mark.parametrize("name", TOGGLES)
def test_every_toggle_has_a_card_that_names_it(name):
    config = tiny(name)
    with torch.device("meta"):
        model = hf_variants.VariantsForCausalLM(config)
    section = card_section(model)
    for key in set(TOGGLES[name]) - {"layer_types", "mlp_layer_types", "no_rope_layers"}:
        if key == "attention_type" and TOGGLES[name][key] in ("mha", "mqa"):
            key = "num_key_value_heads"
        elif TOGGLES[name][key] is None:
            continue
        assert f"`{key}`" in section or toggles_of(config).get(key) is None and key == "num_key_value_heads"
    assert f"| parameters, total | {sum(p.numel() for p in model.parameters()):,} |" in section
    assert f"(bfloat16) | {kv_cache_size(config, dtype_bytes=2).per_token:,} |" in section


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("name", [name for name in HEADS if name != "VariantsForCausalLM"])
def test_parameters_of_an_encoder_count_its_head_and_pooler(name, encoder):
    with torch.device("meta"):
        model = getattr(hf_variants, name)(tiny(encoder, num_labels=5))
    assert parameters_of(model)["total"] == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", HEADS)
def test_parameters_count_the_head_that_was_saved(name, tied):
    config = tiny("moe_shared", num_labels=5, is_causal=name != "VariantsForMaskedLM", tie_word_embeddings=tied)
    model = getattr(hf_variants, name)(config)
    idle = 2 * 2 * (3 * 32 * 20)  # two layers, two of four experts of three matrices
    total = sum(p.numel() for p in model.parameters())
    assert parameters_of(model) == {"total": total, "active": total - idle}
    assert HEADS[name][0] in card_section(model)


def test_saving_writes_and_refreshes_the_card(tmp_path):
    build(tiny("gqa")).save_pretrained(tmp_path)
    first = read(tmp_path)
    assert "pipeline_tag: text-generation" in first and "`attention_type`" not in first
    edited = first.replace(BEGIN, f"Above.\n\n{BEGIN}").replace("tags:", "license: mit\ntags:\n- mine") + "\nBelow.\n"
    (tmp_path / "README.md").write_text(edited)
    build(tiny("mla")).save_pretrained(tmp_path)
    card = ModelCard(read(tmp_path))
    assert "`attention_type` | `mla`" in card.text and "Above." in card.text and "Below." in card.text
    assert card.text.count(BEGIN) == card.text.count(END) == 1
    assert card.data.license == "mit" and card.data.tags == ["mine", "variants", "hf_variants"]
    build(tiny("mla")).save_pretrained(tmp_path)
    assert ModelCard(read(tmp_path)).content == card.content


@pytest.mark.parametrize("own", ["# Mine\n\nWords.\n", "---\nlicense: mit\n---\n# Mine\n", "---\nbroken: [\n---\n# Mine\n"])
def test_a_card_of_the_user_stays_byte_for_byte(tmp_path, own):
    (tmp_path / "README.md").write_text(own)
    build(tiny("gqa")).save_pretrained(tmp_path)
    assert read(tmp_path) == own


def test_metadata_alone_gets_a_body(tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: mit\ntags: small\n---\n")
    build(tiny("gqa")).save_pretrained(tmp_path)
    card = ModelCard(read(tmp_path))
    assert card.data.license == "mit" and BEGIN in card.text and card.data.tags[0] == "small"


def test_the_blank_form_of_a_push_is_replaced(tmp_path):
    data = ModelCardData(tags=["mine"], library_name="transformers")
    ModelCard.from_template(data, model_description=_BLANK_DESCRIPTION).save(tmp_path / "README.md")
    write_card(build(tiny("gqa")), tmp_path, "me/model")
    assert "More Information Needed" not in read(tmp_path) and "# model\n" in read(tmp_path) and "- mine" in read(tmp_path)


def test_unreadable_metadata_of_our_card_is_left_with_a_warning(tmp_path):
    own = f"---\nbroken: [\n---\n{BEGIN}\n{END}\n"
    (tmp_path / "README.md").write_text(own)
    with pytest.MonkeyPatch.context() as patch:
        warned = []
        patch.setattr("hf_variants.hub.card.logger.warning", warned.append)
        build(tiny("gqa")).save_pretrained(tmp_path)
    assert read(tmp_path) == own
    assert len(warned) == 1 and "was left as" in warned[0]


def test_origin_is_a_repo_and_never_a_path(tmp_path, monkeypatch):
    config = tiny("gqa")
    for name, expected in {"org/model": "org/model", str(tmp_path): None, "model": None, "../org/model": None}.items():
        config._name_or_path = name
        assert repo_of_origin(config) == expected
    (tmp_path / "runs" / "last").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    config._name_or_path = "runs/last"
    assert repo_of_origin(config) is None


def test_provenance_names_the_native_family_and_quantization():
    model = build(tiny("gqa"))
    model.config.native = {"model_type": "qwen3", "config": {}}
    model.config.quantization_config = {"quant_method": "awq", "bits": 4}
    section = card_section(model)
    assert "Converted from a `qwen3` checkpoint" in section and "| weights | awq, 4 bits |" in section
    model.config.quantization_config = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    assert quantization_of(model.config) == "bitsandbytes, 8 bits"


def test_encoder_card_has_no_cache():
    section = card_section(build(tiny("sliding", is_causal=False)))
    assert "KV cache" not in section and "bidirectional encoder" in section


def test_an_adapter_is_saved_without_code_and_card(tmp_path):
    from peft import LoraConfig

    model = build(tiny("gqa"))
    model.add_adapter(LoraConfig(r=2, target_modules=["q_proj"]))
    model.save_pretrained(tmp_path)
    saved = {path.name for path in tmp_path.iterdir()}
    assert saved == {"adapter_config.json", "adapter_model.safetensors", "generation_config.json"}


def test_draft_of_a_plain_trainer_gains_our_section_and_that_of_other_models_does_not(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    sizes = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    models = {"ours": build(tiny("qk_head")), "native": LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, **sizes))}
    for name, model in models.items():
        arguments = TrainingArguments(output_dir=tmp_path / name, report_to=[], use_cpu=True)
        trainer = Trainer(model=model, args=arguments)
        trainer.save_model()
        trainer.create_model_card(dataset="verses", tags="mine")
        card = ModelCard(read(tmp_path / name))
        assert "the verses dataset" in card.text and "mine" in card.data.tags
        assert (BEGIN in card.text) is (name == "ours")
    assert "`qk_norm` | `head`" in read(tmp_path / "ours")


def test_the_section_of_a_run_stays_beside_what_others_wrote(tmp_path):
    from hf_variants.hub import write_run_section

    write_run_section(tmp_path, "## Training\n\nfirst run")
    model = hf_variants.VariantsForCausalLM(tiny("default" if "default" in TOGGLES else next(iter(TOGGLES))))
    model.save_pretrained(tmp_path)
    text = read(tmp_path)
    assert "first run" in text and BEGIN in text and "library_name: transformers" in text
    (tmp_path / "README.md").write_text(text + "\nMine.\n")
    write_run_section(tmp_path, "## Training\n\nsecond run")
    model.save_pretrained(tmp_path)
    text = read(tmp_path)
    assert "second run" in text and "first run" not in text and text.count(BEGIN) == 1 and "Mine." in text
