"""Encoder-decoders: generation with and without a cache, pads and documents on both sides, losses, tables, bad input.

Covers known failures B03, B07, B15, B23, B39 and B40 for two stacks.
"""

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from hf_variants import VariantsConfig, VariantsForSeq2SeqLM, VariantsSeq2SeqConfig, VariantsSeq2SeqModel
from hf_variants.analysis import count_parameters, describe, kv_cache_size
from hf_variants.modeling.seq2seq_rules import SEQ2SEQ_RULES
from tests.variants import BASE, EXPERTS, build, draw_ids, far, randomise, tiny, tiny_pair

# encoder toggle, decoder toggle, keys of both stacks, keys of the whole
PAIRS = {
    "grouped": ("gqa", "gqa", {}, {}),
    "latent": ("mla", "mla_qk_head", {}, {}),
    "windows": ("alternating", "sliding", {}, {"tie_word_embeddings": True}),
    "alibi and softcap": ("alibi", "sinks_softcap_sliding", {}, {}),
    "post": ("post_ln", "post_ln", {"norm_type": "layernorm"}, {"final_logits_bias": True}),
    "tables": ("learned", "sinusoidal", {}, {"share_embeddings": True}),
    "chunks": ("chunked", "mla_chunked", {}, {}),
    "experts": ("moe_aux_loss", "moe_aux_loss", {}, {}),
    "token types": ("token_types", "longrope", {}, {}),
}
IDS, REAL = draw_ids(2, 7), torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 0]])
SOURCE = {"input_ids": IDS, "attention_mask": REAL}


def pair(name, **joined):
    encoder, decoder, keys, more = PAIRS[name]
    if more.get("share_embeddings"):
        keys = {**keys, "hidden_size": 32}
    return tiny_pair(encoder, decoder, keys, **{**more, **joined})


@pytest.mark.parametrize("name", PAIRS)
def test_cached_generation_equals_uncached_on_both_backends(name):
    model = build(pair(name))
    with torch.no_grad():
        for backend in ("eager", "sdpa"):
            model.set_attn_implementation(backend)
            out = model.generate(
                **SOURCE, max_new_tokens=12, do_sample=False, output_logits=True, return_dict_in_generate=True
            )
            ids = torch.cat((out.sequences[:, :1], out.sequences[:, 1:]), dim=1)
            whole = model(**SOURCE, decoder_input_ids=ids[:, :-1]).logits
            steps = torch.stack(out.logits, dim=1)
            assert far(whole[0, : steps.shape[1]], steps[0]) < 3e-5 * max(1.0, whole.abs().max().item())
            plain = model.generate(**SOURCE, max_new_tokens=12, do_sample=False, use_cache=False)
            assert torch.equal(out.sequences, plain)


STRATEGIES = {
    "beams": {"num_beams": 3},
    "sampling": {"do_sample": True, "top_k": 5},
    "beam samples": {"num_beams": 2, "do_sample": True, "num_return_sequences": 2},
    "static": {"cache_implementation": "static"},
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["grouped", "latent", "windows", "alibi and softcap"])
def test_strategies_give_the_same_with_and_without_a_cache(name, strategy):
    model, found = build(pair(name)), []
    for more in (STRATEGIES[strategy], {**STRATEGIES[strategy], "use_cache": False, "cache_implementation": None}):
        torch.manual_seed(5)
        found.append(model.generate(**SOURCE, max_new_tokens=8, **{"do_sample": False, **more}))
    assert torch.equal(*found)


# a compiled cache refuses LongRoPE
@pytest.mark.parametrize("name", [name for name in PAIRS if name != "token types"])
def test_prompts_of_the_decoder_padded_on_the_left_write_what_they_write_alone(name):
    model, prompts = build(pair(name)), [draw_ids(1, 4, seed=9), draw_ids(1, 2, seed=10)]
    for prompt in prompts:
        prompt[:, 0] = model.config.decoder_start_token_id
    padded = torch.cat((prompts[0], torch.nn.functional.pad(prompts[1], (2, 0), value=5)))
    shown = torch.tensor([[1] * 4, [0, 0, 1, 1]])
    more = {"max_new_tokens": 4, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    alone = [
        model.generate(input_ids=IDS[row : row + 1], attention_mask=REAL[row : row + 1], decoder_input_ids=prompt, **more)
        for row, prompt in enumerate(prompts)
    ]
    for cache in ({}, {"use_cache": False}, {"cache_implementation": "static", "disable_compile": True}):
        both = model.generate(**SOURCE, decoder_input_ids=padded, decoder_attention_mask=shown, **more, **cache)
        for row, one in enumerate(alone):
            for step, (found, wanted) in enumerate(zip(both.logits, one.logits, strict=False)):
                assert far(found[row], wanted[0]) < 3e-5 * max(1.0, wanted.abs().max().item()), (cache, row, step)
            written = one.sequences[0, prompts[row].shape[1] :]
            assert torch.equal(both.sequences[row, 4 : 4 + len(written)], written), (cache, row)


def test_drafts_from_the_prompt_do_not_change_what_is_generated():
    model, source = build(pair("windows")), {"input_ids": IDS[:1]}
    plain = model.generate(**source, max_new_tokens=10, do_sample=False)
    assert torch.equal(plain, model.generate(**source, max_new_tokens=10, do_sample=False, prompt_lookup_num_tokens=2))


def test_the_encoder_runs_once_and_its_keys_are_made_once():
    model, runs = build(pair("windows")), []
    model.model.encoder.register_forward_hook(lambda *args: runs.append("encoder"))
    model.model.decoder.layers[0].cross_attn.v_proj.register_forward_hook(lambda *args: runs.append("values"))
    cache = model.generate(**SOURCE, max_new_tokens=6, do_sample=False, return_dict_in_generate=True).past_key_values
    assert runs == ["encoder", "values"]
    assert {layer.keys.shape[2] for layer in cache.cross_attention_cache.layers} == {7}


@pytest.mark.parametrize("name", PAIRS)
def test_pads_on_either_side_change_nothing(name):
    model, target, short = build(pair(name)), draw_ids(1, 4, seed=9), IDS[1:, 2:6]
    with torch.no_grad():
        alone = model(input_ids=short, decoder_input_ids=target).logits
        padded = torch.cat((torch.zeros(1, 2, dtype=torch.long), target), dim=1)
        shown = (torch.arange(6) >= 2).long().unsqueeze(0)
        left = model(input_ids=IDS[1:], attention_mask=REAL[1:], decoder_input_ids=padded, decoder_attention_mask=shown)
        assert far(left.logits[:, 2:], alone) < 3e-5 * max(1.0, alone.abs().max().item())


def test_packed_rows_equal_their_documents():
    model = build(pair("alibi and softcap"))
    sources, targets = [IDS[:1, :3], IDS[1:, :4]], [draw_ids(1, 2, seed=4), draw_ids(1, 3, seed=6)]
    with torch.no_grad():
        apart = [model(input_ids=one, decoder_input_ids=two).logits for one, two in zip(sources, targets, strict=True)]
        places = [torch.cat([torch.arange(part.shape[1]) for part in parts]).unsqueeze(0) for parts in (sources, targets)]
        packed = {"input_ids": torch.cat(sources, dim=1), "position_ids": places[0]}
        packed |= {"decoder_input_ids": torch.cat(targets, dim=1), "decoder_position_ids": places[1]}
        assert far(model(**packed).logits, torch.cat(apart, dim=1)) < 3e-5 * max(1.0, apart[0].abs().max().item())
        with pytest.raises(ValueError, match="2 documents in the encoder .* 1 in the decoder"):
            model(**{**packed, "decoder_position_ids": None})


@pytest.mark.parametrize("name", PAIRS)
def test_one_step_of_training_reaches_every_parameter(name):
    model = build(pair(name)).train()
    types = {"token_type_ids": REAL} if name == "token types" else {}
    loss = model(**SOURCE, **types, labels=draw_ids(2, 5)).loss
    loss.backward()
    lacking = [key for key, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    # the encoder has no say in rows of learned tables that no position reaches
    assert loss.isfinite() and lacking == []


def test_b23_labels_stand_where_they_are_predicted():
    model, labels = build(pair("grouped")), draw_ids(2, 5)
    labels[0, 3:] = -100
    out = model(**SOURCE, labels=labels)
    begun = torch.cat((torch.zeros(2, 1, dtype=torch.long), labels[:, :-1].clamp(min=0)), dim=1)
    assert torch.equal(model.prepare_decoder_input_ids_from_labels(labels), begun)
    logits = model(**SOURCE, decoder_input_ids=begun).logits
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert far(out.loss, expected) < 1e-5 and far(out.logits, logits) == 0
    step = model(**SOURCE, labels=labels, num_items_in_batch=torch.tensor(16)).loss
    assert far(step, expected * 8 / 16) < 1e-5
    skipped = model.train()(**SOURCE, labels=labels)
    assert far(skipped.loss, expected) < 1e-5 and far(skipped.logits, logits) < 1e-5


def test_the_last_label_may_stand_first():
    config = tiny_pair(decoder_start="last_token", decoder_start_token_id=None)
    labels = torch.tensor([[5, 6, 2, 9, -100], [5, 2, 8, 0, 0]])
    begun = build(config).prepare_decoder_input_ids_from_labels(labels)
    assert begun.tolist() == [[9, 5, 6, 2, 9], [8, 5, 2, 8, 0]]
    with pytest.raises(ValueError, match="decoder_start_token_id=None"):
        build(config).generate(IDS)


def test_router_losses_of_both_stacks_are_counted():
    config = pair("experts")
    model, labels = build(config).train(), draw_ids(2, 5)
    out = model(**SOURCE, labels=labels)
    assert out.encoder_aux_loss > 0 and out.decoder_aux_loss > 0 and out.encoder_z_loss > 0 and out.decoder_z_loss > 0
    plain = nn.functional.cross_entropy(out.logits.flatten(0, 1), labels.flatten())
    terms = sum(coef * out[name] for name, coef in model.router_coefs.items())
    assert far(out.loss, plain + terms) < 1e-5 and set(model.router_sums) == set(model.router_coefs)
    # pads of the encoder count for nothing
    moved = {**SOURCE, "input_ids": torch.where(REAL == 0, 7, IDS)}
    assert far(model(**moved, labels=labels).encoder_aux_loss, out.encoder_aux_loss) < 1e-6
    assert model.eval()(**SOURCE, labels=labels).encoder_aux_loss is None


def test_loads_of_both_stacks_are_told_apart():
    from hf_variants.callbacks import routers_by_layer

    assert set(routers_by_layer(build(pair("experts")))) == {"encoder_0", "decoder_0", "decoder_1"}
    assert set(routers_by_layer(build(tiny("moe")))) == {0, 1}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_b39_b40_tables_are_tied_apart_and_saved(tied, shared, tmp_path):
    keys = {"hidden_size": 32} if shared else {}
    config = tiny_pair("gqa", "gqa", keys, tie_word_embeddings=tied, share_embeddings=shared, final_logits_bias=True)
    assert isinstance(VariantsForSeq2SeqLM._tied_weights_keys, dict)
    model = build(config)
    model.final_logits_bias.normal_()
    encoder, decoder = model.model.encoder.embed_tokens.weight, model.model.decoder.embed_tokens.weight
    assert (encoder is decoder) == shared and (model.lm_head.weight is decoder) == tied
    model.save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(again) is VariantsForSeq2SeqLM
    for one, other in zip((config, *config.stacks), (again.config, *again.config.stacks), strict=True):
        names = [name for name in one.own_fields() if name not in ("encoder", "decoder")]
        assert all(getattr(one, name) == getattr(other, name) for name in names)
    state = again.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert (again.lm_head.weight is again.model.decoder.embed_tokens.weight) == tied
    base = AutoModel.from_pretrained(tmp_path)
    assert type(base) is VariantsSeq2SeqModel
    assert (base.encoder.embed_tokens.weight is base.decoder.embed_tokens.weight) == shared
    assert type(AutoConfig.from_pretrained(tmp_path)) is VariantsSeq2SeqConfig
    assert count_parameters(config).total == sum(p.numel() for p in model.parameters())
    assert count_parameters(config).buffers == config.vocab_size
    model.resize_token_embeddings(70)
    assert model.config.encoder.vocab_size == model.config.decoder.vocab_size == 70
    assert model(**SOURCE, decoder_input_ids=IDS).logits.shape[-1] == 70


def test_states_weights_and_tuples_are_returned_as_asked():
    model = build(pair("grouped"))
    model.set_attn_implementation("eager")
    asked = {"output_attentions": True, "output_hidden_states": True}
    out = model(**SOURCE, decoder_input_ids=IDS[:, :3], **asked)
    shapes = [tuple(part[0].shape[2:]) for part in (out.encoder_attentions, out.decoder_attentions, out.cross_attentions)]
    assert shapes == [(7, 7), (3, 3), (3, 7)]
    assert len(out.encoder_hidden_states) == 2 and len(out.decoder_hidden_states) == 3
    assert far(out.encoder_hidden_states[-1], out.encoder_last_hidden_state) == 0
    ready = model(**{"attention_mask": REAL}, encoder_outputs=(out.encoder_last_hidden_state,), decoder_input_ids=IDS[:, :3])
    assert far(ready.logits, out.logits) < 1e-6
    assert far(model(**SOURCE, decoder_input_ids=IDS[:, :3], return_dict=False)[0], out.logits) < 1e-6
    generated = model.generate(**SOURCE, max_new_tokens=3, return_dict_in_generate=True, **asked)
    assert tuple(generated.cross_attentions[0][0].shape) == (2, 4, 1, 7)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_gives_the_same_gradients(reentrant):
    grads = []
    for checkpointed in (False, True):
        model = build(pair("windows")).train()
        if checkpointed:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
            model.model.decoder.enable_input_require_grads()
            model.model.encoder.enable_input_require_grads()
        model(**SOURCE, labels=IDS[:, :4]).loss.backward()
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert far(*grads) < 1e-6


def test_costs_of_generating_grow_by_the_same_with_every_state_of_the_encoder():
    from hf_variants.analysis import flops_per_token

    config = pair("windows")
    flops = [flops_per_token(config, 8, "decode", encoder_length=n).total for n in (10, 20, 30)]
    sizes = [kv_cache_size(config, 8, encoder_length=n).bytes for n in (10, 20, 30)]
    assert flops[1] - flops[0] == flops[2] - flops[1] > 0 and sizes[1] - sizes[0] == sizes[2] - sizes[1] > 0
    assert describe(config)["kv_cache"]["bytes_per_encoder_state"] == (sizes[1] - sizes[0]) // 10


BROKEN = {
    "the encoder sees both sides": {"encoder": {**BASE, "is_causal": True}},
    "the decoder predicts the next token": {"decoder": {**BASE, "is_causal": False}},
    "the decoder attends to the encoder": {"decoder": {**BASE, "add_cross_attention": False}},
    "cross-attention reads what the encoder gives": {"decoder": {**BASE, "cross_attention_hidden_size": 8}},
    "the encoder attends to nothing else": {"encoder": {**BASE, "add_cross_attention": True}},
    "the head stands on the decoder": {"encoder": {**BASE, "lm_head_bias": True}},
    "decoder inputs have a beginning": {"decoder_start_token_id": None},
    "the last token is told from pads": {"decoder_start": "last_token", "decoder": {**BASE, "pad_token_id": None}},
    "special tokens lie in the vocabulary of the decoder": {"decoder_start_token_id": 61},
    "one table serves one vocabulary": {"share_embeddings": True, "encoder": {**BASE, "vocab_size": 50}},
    "the tied head is told by the whole": {"tie_word_embeddings": True, "decoder": {**BASE, "tie_word_embeddings": False}},
}


def test_every_rule_has_a_case():
    assert {rule.name for rule in SEQ2SEQ_RULES} == set(BROKEN)


@pytest.mark.parametrize("name", BROKEN)
def test_rule_refuses_what_breaks_it(name):
    rule = next(rule for rule in SEQ2SEQ_RULES if rule.name == name)
    with pytest.raises(ValueError) as error:
        VariantsSeq2SeqConfig(**{**{"encoder": {**BASE}, "decoder": {**BASE}, "decoder_start_token_id": 0}, **BROKEN[name]})
    assert str(error.value).startswith(rule.text.split("{")[0][:30])


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"encodr": {}}, "did you mean 'encoder'"),
        (
            {"encoder": {**BASE, "hidden_sise": 8}},
            "encoder: VariantsConfig has no key 'hidden_sise'.*did you mean 'hidden_size'",
        ),
        ({"decoder": {**BASE, "norm_type": "rms"}}, "decoder: norm_type='rms' is unknown"),
        ({"decoder": {"model_type": "llama"}}, "decoder.model_type='llama'"),
        ({"decoder_start": "bos"}, "decoder_start='bos' is unknown"),
        ({"share_embeddings": "yes"}, "share_embeddings='yes' is a str"),
    ],
)
def test_misspelt_and_misplaced_keys_are_refused(keys, words):
    with pytest.raises(ValueError, match=words):
        VariantsSeq2SeqConfig(**{**{"encoder": {**BASE}, "decoder": {**BASE}, "decoder_start_token_id": 0}, **keys})


def test_configs_of_single_stacks_can_be_joined():
    encoder, decoder = tiny("sliding", is_causal=False), tiny("moe")
    config = VariantsSeq2SeqConfig(encoder=encoder, decoder=decoder, decoder_start_token_id=0)
    assert config.decoder.add_cross_attention and not decoder.add_cross_attention
    assert config.decoder.num_experts == EXPERTS["num_experts"] and isinstance(config.encoder, VariantsConfig)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"attention_mask": torch.tensor([[1] * 7, [0] * 7])}, "hides every token of row 1"),
        ({"attention_mask": torch.ones(2, 1, 7, 7)}, r"give \[batch, tokens\]"),
        ({"attention_mask": REAL[:, :5]}, "5 columns"),
    ],
)
def test_bad_input_is_refused(inputs, words):
    model = build(pair("grouped"))
    with pytest.raises(ValueError, match=words):
        model(**{**SOURCE, **inputs}, decoder_input_ids=IDS)
    with pytest.raises(ValueError, match=f"{words}|must be 2D"):
        model.generate(**{**SOURCE, **inputs}, max_new_tokens=2)


def test_labels_without_a_pad_are_refused_where_one_is_needed():
    config = tiny_pair(wider={"pad_token_id": None})
    model, labels = randomise(VariantsForSeq2SeqLM(config)), IDS[:, :3].clone()
    model(**SOURCE, labels=labels)
    labels[0, 2] = -100
    with pytest.raises(ValueError, match="pad_token_id=None"):
        model(**SOURCE, labels=labels)


def test_lora_reaches_both_stacks():
    from peft import LoraConfig, get_peft_model

    model = build(pair("experts"))
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", task_type="SEQ_2_SEQ_LM"))
    names = [name for name, p in adapted.named_parameters() if p.requires_grad]
    parts = ("encoder.layers.0.self_attn", "decoder.layers.1.cross_attn", "decoder.layers.0.mlp.experts")
    assert all(any(part in name for name in names) for part in parts)
    adapted(**SOURCE, labels=IDS[:, :3]).loss.backward()
    assert adapted.generate(**SOURCE, max_new_tokens=2).shape[0] == 2


def test_b20_experts_of_both_stacks_are_loaded_in_4_bits(tmp_path):
    pytest.importorskip("bitsandbytes")
    from transformers import BitsAndBytesConfig

    wide = {"hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 64, "head_dim": 16}
    model = build(tiny_pair("moe", "moe", wide))
    model.save_pretrained(tmp_path)
    settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    small = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, quantization_config=settings, dtype=torch.float32)
    kept = [name for name, p in small.named_parameters() if p.dim() > 1 and p.dtype != torch.uint8]
    assert all("embed_tokens" in name or name.endswith(("mlp.gate.weight", "lm_head.weight")) for name in kept)
    assert small.generate(**SOURCE, max_new_tokens=2).shape[0] == 2
