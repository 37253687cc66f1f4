"""The cache of first and latest tokens, against a forward written out token by token, and within `generate`."""

import copy

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from hf_variants import StartWindowCache
from hf_variants.modeling.masks import Blocks
from hf_variants.modeling.positions import alibi_slopes
from tests.modeling.helpers import MIXERS, scaled_far
from tests.variants import MLA, build, draw_ids, tiny

FIRST, WINDOW, LENGTH = 3, 5, 20
CUTS = {"at once": [20], "one by one": [1] * 20, "mixed": [2, 5, 1, 4, 1, 1, 6], "all but one": [19, 1]}
SCHEMES = {
    "rope": {},
    "interleaved": {"rope_interleaved": True},
    "partial": {"partial_rotary_factor": 0.5},
    "yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
    "some layers turn": {"no_rope_layers": [1, 0]},
    "alibi": {"position_embedding_type": "alibi"},
    "none": {"position_embedding_type": "none"},
    "mla": MLA,
    "mla interleaved": {**MLA, "rope_interleaved": True},
    "mla alibi": {**MLA, "position_embedding_type": "alibi"},
}


def turned(x, places, config, key):
    """[heads, T, D] turned to places [T], in complex numbers."""
    rope, width = config.rope_of(key), config.rotary_dim_of(key)
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if rope["rope_type"] == "default":
        inv_freq, factor = rope["rope_theta"] ** (-torch.arange(0, width, 2) / width), 1.0
    else:
        native = LlamaConfig(head_dim=width, hidden_size=width, num_attention_heads=1, rope_parameters=dict(rope),
                             max_position_embeddings=config.max_position_embeddings)  # fmt: skip
        inv_freq, factor = ROPE_INIT_FUNCTIONS["yarn"](native, torch.device("cpu"))
    head, rest = x[..., :width].double(), x[..., width:].double()
    pairs = head.unflatten(-1, (-1, 2)) if config.rope_interleaved else head.unflatten(-1, (2, -1)).transpose(-1, -2)
    angles = places.double().unsqueeze(-1) * inv_freq.double()
    spun = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.full_like(angles, factor), angles))
    spun = spun.flatten(-2) if config.rope_interleaved else spun.transpose(-1, -2).flatten(-2)
    return torch.cat((spun, rest), dim=-1)


def heads_of(attention, config, x):
    """(query, key, value) [heads, T, D] before RoPE, and how many leading dimensions of query and key RoPE leaves alone."""
    if config.attention_type == "mla":
        nope, rope, rank = config.qk_nope_head_dim, config.qk_rope_head_dim, config.kv_lora_rank
        q = attention.q_proj(x).view(len(x), -1, nope + rope).transpose(0, 1)
        latent, k_rope = attention.kv_a_proj_with_mqa(x).split([rank, rope], dim=-1)
        expanded = attention.kv_b_proj(attention.kv_a_layernorm(latent)).view(len(x), len(q), -1).transpose(0, 1)
        key = torch.cat((expanded[..., :nope], k_rope.expand(len(q), -1, -1)), dim=-1)
        return q, key, expanded[..., nope:], nope
    split = lambda states: states.view(len(x), -1, config.head_dim).transpose(0, 1)  # noqa: E731
    q, k, v = (split(part(x)) for part in (attention.q_proj, attention.k_proj, attention.v_proj))
    return q, k.repeat_interleave(len(q) // len(k), 0), v.repeat_interleave(len(q) // len(k), 0), 0


def attended(layer, plan, x, first, window):
    """Attention of a pre-norm layer on x [T, H], a query at a time, as the paper says it."""
    config = layer.self_attn.config
    q, k, v, alone = heads_of(layer.self_attn, config, x)
    out = []
    for t in range(len(x)):
        seen = [j for j in range(t + 1) if j < first or j > t - window]
        places = torch.arange(len(seen))
        query, keys = q[:, t : t + 1].double(), k[:, seen].double()
        if plan.rope_key is not None:
            query, keys = (
                torch.cat((part[..., :alone], turned(part[..., alone:], at, config, plan.rope_key)), dim=-1)
                for part, at in ((query, places[-1:]), (keys, places))
            )
        scores = query @ keys.transpose(1, 2) * plan.scaling
        if config.position_embedding_type == "alibi":
            scores = scores - alibi_slopes(len(q)).double().view(-1, 1, 1) * (places[-1] - places)
        out.append((scores.softmax(-1) @ v[:, seen].double()).transpose(0, 1).reshape(1, -1))
    return layer.self_attn.o_proj(torch.cat(out).float())


@torch.no_grad()
def written_out(model, ids, first, window):
    """Logits [T, V] of ids [T]."""
    x = model.model.embed_tokens(ids)
    for layer, plan in zip(model.model.layers, model.model.plan, strict=True):
        x = x + attended(layer, plan, layer.input_layernorm(x), first, window)
        x = x + layer.mlp(layer.post_attention_layernorm(x).unsqueeze(0), None)[0]
    return model.lm_head(model.model.norm(x))


@torch.no_grad()
def streamed(model, ids, cuts, first=FIRST, window=WINDOW, cache=None):
    cache = cache or StartWindowCache(model.config, first, window)
    parts = [model(part, past_key_values=cache).logits for part in ids.split(cuts, dim=1)]
    return torch.cat(parts, dim=1), cache


def model_of(keys, backend="sdpa", dtype=torch.float32):
    config = tiny("gqa", **keys)
    config._attn_implementation = backend
    return build(config).to(dtype)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_equal_to_the_forward_written_out(scheme):
    model, ids = model_of(SCHEMES[scheme]), draw_ids(1, LENGTH)
    for first, window, cuts in [*((FIRST, WINDOW, cuts) for cuts in CUTS), (0, WINDOW, "mixed"), (4, 1, "mixed")]:
        logits, cache = streamed(model, ids, CUTS[cuts], first, window)
        expected = written_out(model, ids[0], first, window)
        assert (logits[0] - expected).abs().max() < 1e-5, (first, window, cuts)
        assert cache.get_seq_length() == LENGTH and cache.layers[0].keys.shape[2] == first + window - 1


@pytest.mark.parametrize("backend", ["eager", "flex_attention"])
@pytest.mark.parametrize("scheme", ["rope", "alibi", "mla"])
def test_backends_agree(scheme, backend):
    model, ids = model_of(SCHEMES[scheme]), draw_ids(1, LENGTH)
    other = model_of(SCHEMES[scheme], backend)
    expected = streamed(model, ids, CUTS["mixed"])[0]
    assert (streamed(other, ids, CUTS["mixed"])[0] - expected).abs().max() < 1e-5


def window_mask(length, window):
    return torch.ones(length, length, dtype=torch.bool).tril().triu(1 - window)[None, None]


def test_a_trained_bias_is_not_called_a_part_of_tokens():
    for name, why in (("relative", "trained bias"), ("learned", "part of a token"), ("learned_relative", "part of a token")):
        with pytest.raises(ValueError, match=f"position_embedding_type='{name}' .*{why}"):
            StartWindowCache(tiny(name), FIRST, WINDOW)


@pytest.mark.parametrize("name", MIXERS)
def test_every_toggle_is_right_or_refused(name):
    config = tiny(name)
    scheme, kinds = config.position_embedding_type, set(config.layer_types)
    rules = {config.rope_of(key)["rope_type"] for key in config.rope_keys}
    movable = scheme in ("rope", "alibi", "none") and kinds == {"full_attention"} and not rules & {"dynamic", "longrope"}
    normed = scheme == "rope" and config.qk_norm != "none" and config.qk_norm_after_rope
    if not movable or normed or config.attn_temperature_tuning or config.alibi_scaled_bf16:
        with pytest.raises(ValueError, match="position_embedding_type|layer_types|rope_type|qk_norm_after_rope|=True reads"):
            StartWindowCache(config, FIRST, WINDOW)
        return
    model, ids = build(config), draw_ids(2, LENGTH)
    one_by_one = streamed(model, ids, CUTS["one by one"])[0]
    for cuts in ("at once", "mixed"):
        assert scaled_far(streamed(model, ids, CUTS[cuts])[0], one_by_one) < 1e-5, cuts
    with torch.no_grad():
        # without first tokens, distances within the cache are those of the text
        windowed = model(ids, attention_mask=window_mask(LENGTH, WINDOW), use_cache=False).logits
        whole = model(ids, use_cache=False).logits
    assert scaled_far(streamed(model, ids, CUTS["mixed"], first=0)[0], windowed) < 1e-5
    assert scaled_far(streamed(model, ids, CUTS["mixed"], first=2, window=LENGTH)[0], whole) < 1e-5


def test_low_precision():
    for keys in ({}, {"position_embedding_type": "alibi"}, MLA):
        model, ids = model_of(keys, dtype=torch.bfloat16), draw_ids(1, LENGTH)
        logits = streamed(model, ids, CUTS["mixed"])[0].float()
        exact = streamed(model_of(keys), ids, CUTS["mixed"])[0]
        assert (logits - exact).abs().max() < 0.1 * exact.abs().max()


def greedy(model, ids, count, first, window):
    row = ids
    for _ in range(count):
        row = torch.cat((row, written_out(model, row, first, window)[-1].argmax().view(1)))
    return row


@pytest.mark.parametrize("prompt", [4, 30])
def test_generate_beyond_the_context(prompt):
    model = model_of({"max_position_embeddings": 16, "eos_token_id": None})
    ids, options = draw_ids(2, prompt), {"do_sample": False, "max_new_tokens": 24, "pad_token_id": 0}
    out = model.generate(ids, past_key_values=StartWindowCache(model.config, FIRST, WINDOW), **options)
    assert out.shape[1] == prompt + 24 > 16
    for row in range(2):
        assert torch.equal(out[row], greedy(model, ids[row], 24, FIRST, WINDOW))


def test_a_conversation_goes_on_in_the_same_cache():
    model, ids = model_of({"eos_token_id": None}), draw_ids(1, 9)
    options = {"do_sample": False, "pad_token_id": 0}
    cache = StartWindowCache(model.config, FIRST, WINDOW)
    half = model.generate(ids, past_key_values=cache, max_new_tokens=8, **options)
    said = torch.cat((half, draw_ids(1, 7, seed=3)), dim=1)
    both = model.generate(said, past_key_values=cache, max_new_tokens=8, **options)
    assert torch.equal(both[0], greedy(model, said[0], 8, FIRST, WINDOW))


def test_beams_and_groups_of_one_prompt():
    model, ids = model_of({"eos_token_id": None}), draw_ids(2, 6)
    options = {"max_new_tokens": 12, "pad_token_id": 0, "num_beams": 3, "do_sample": False}
    roomy = model.generate(ids, past_key_values=StartWindowCache(model.config, 2, 40), **options)
    assert torch.equal(roomy, model.generate(ids, past_key_values=DynamicCache(config=model.config), **options))
    tight = model.generate(ids, past_key_values=StartWindowCache(model.config, FIRST, WINDOW), **options)
    for row in range(2):
        alone = model.generate(ids[row : row + 1], past_key_values=StartWindowCache(model.config, FIRST, WINDOW), **options)
        assert torch.equal(tight[row : row + 1], alone)


def test_reset_and_copies():
    model, ids = model_of({}), draw_ids(1, LENGTH)
    logits, cache = streamed(model, ids, CUTS["mixed"])
    cache.reset()
    assert cache.get_seq_length() == 0
    assert torch.equal(streamed(model, ids, CUTS["mixed"], cache=cache)[0], logits)
    _, half = streamed(model, ids[:, :12], [12])
    twin = copy.deepcopy(half)
    ends = [streamed(model, ids[:, 12:], [8], cache=each)[0] for each in (half, twin)]
    assert torch.equal(*ends) and half.get_seq_length() == twin.get_seq_length() == LENGTH


def test_what_it_refuses():
    model, ids = model_of({}), draw_ids(2, 6)
    new = lambda **keys: StartWindowCache(model.config, **{"num_sink_tokens": 2, "window": 4, **keys})  # noqa: E731
    for keys in ({"num_sink_tokens": -1}, {"window": 0}, {"window": 2.0}, {"num_sink_tokens": True}):
        with pytest.raises(ValueError, match=f"{next(iter(keys))}=.* must be a whole number"):
            new(**keys)
    with pytest.raises(ValueError, match="2 [+] 63 exceeds max_position_embeddings=64"):
        new(window=63)
    pads = torch.ones_like(ids).index_fill(1, torch.tensor([0]), 0)
    with pytest.raises(ValueError, match="attention_mask hides tokens"):
        model(ids, attention_mask=pads, past_key_values=new())
    with pytest.raises(ValueError, match="leave the 4D attention_mask out"):
        model(ids, attention_mask=window_mask(6, 3), past_key_values=new())
    with pytest.raises(ValueError, match="blocks of tokens that see each other"):
        model.model(ids, blocks=Blocks(torch.ones_like(ids), windowed=False), past_key_values=new())
    for positions in (torch.arange(6) + 1, torch.tensor([0, 1, 2, 0, 1, 2])):
        with pytest.raises(ValueError, match="position_ids must go on from the 0 tokens"):
            model(ids, position_ids=positions.unsqueeze(0), past_key_values=new())
    for keys in ({"rope_interleaved": True}, SCHEMES["yarn"], {"partial_rotary_factor": 0.5}, SCHEMES["some layers turn"]):
        with pytest.raises(ValueError, match="made for a config that places tokens by"):
            model(ids, past_key_values=StartWindowCache(tiny("gqa", **keys), 2, 4))
    native = LlamaForCausalLM(LlamaConfig(vocab_size=61, hidden_size=32, intermediate_size=40, num_hidden_layers=2,
                                          num_attention_heads=4, num_key_value_heads=2, head_dim=12))  # fmt: skip
    with pytest.raises(ValueError, match="serves models of the family"):
        native(ids, past_key_values=new())
    with pytest.raises(ValueError, match="model_type='llama'.*serves decoders of the family"):
        StartWindowCache(native.config)
    with pytest.raises(ValueError, match="add_cross_attention=True"):
        StartWindowCache(tiny("gqa", add_cross_attention=True, cross_attention_hidden_size=20))
    with pytest.raises(ValueError, match="is_causal=False"):
        StartWindowCache(tiny("gqa", is_causal=False))
    with pytest.raises(ValueError, match="assisted"):
        model.generate(ids[:1], past_key_values=new(), prompt_lookup_num_tokens=2, max_new_tokens=4)
