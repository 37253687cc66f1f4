"""B13, B36, B37, B38, B58: the constants of positions, against transformers' own functions and against formulas in doubles."""

import copy
import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from hf_variants import VariantsConfig, VariantsForCausalLM
from hf_variants.modeling.positions import SinusoidalPositions, VariantsRotaryEmbedding, alibi_slopes
from tests.modeling.helpers import TOLERANCE, logits_of, scaled_far
from tests.variants import BASE, MLA, ORIGINAL, POSITIONS, SCALINGS, build, draw_ids, scaling, tiny

THETAS = (100.0, 10000.0, 500000.0)
EXTRAS = {
    "linear": [{}, {"factor": 8}],
    "dynamic": [{}],
    "yarn": [
        {},
        {"attention_factor": 1.0},
        {"mscale": 1.0, "mscale_all_dim": 1.0},
        {"mscale": 0.707, "mscale_all_dim": 1.3},
        {"mscale": 0.707},
        {"beta_fast": 16, "beta_slow": 2},
        {"truncate": False},
    ],
    "llama3": [{}, {"low_freq_factor": 2.0, "high_freq_factor": 8.0}],
    "longrope": [{}, {"attention_factor": 1.25}],
}
CASES = [(kind, theta, extra) for kind, extras in EXTRAS.items() for theta in THETAS for extra in extras]


def native_table(rope, seq_len=None):
    """transformers' frequencies and attention factor of a RoPE dict for a head of 12. Its dynamic rule reads the config."""
    longest = ORIGINAL if rope["rope_type"] == "dynamic" else 64
    shape = {**BASE, "max_position_embeddings": longest}
    rope = copy.deepcopy(rope)
    if rope["rope_type"] == "dynamic":
        rope.pop("original_max_position_embeddings")
    config = LlamaConfig(**shape, rope_parameters=rope)
    return ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", seq_len=seq_len)


@pytest.mark.parametrize("kind, theta, extra", CASES)
def test_b36_b37_frequencies_and_attention_factor_equal_native(kind, theta, extra):
    rope = scaling(kind, rope_theta=theta) | extra
    table = VariantsRotaryEmbedding(VariantsConfig(**BASE, rope_parameters=rope).rope_of("default"), 12)
    for length in (3, ORIGINAL, ORIGINAL + 1, 60):
        expected, factor = native_table(rope, length)
        rule = table.rule
        found = rule.inv_freq_at(torch.tensor(length)) if rule.follows_length else rule.inv_freq()
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=0)
        assert rule.attention_factor == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("theta", THETAS)
def test_ntk_is_the_static_form_of_its_formula(theta):
    rope = {"rope_type": "ntk", "rope_theta": theta, "factor": 4.0}
    table = VariantsRotaryEmbedding(rope, 12)
    grown = theta * 4.0 ** (12 / 10)
    expected = torch.tensor([grown ** (-2 * i / 12) for i in range(6)], dtype=torch.float64)
    torch.testing.assert_close(table.inv_freq.double(), expected, rtol=2e-6, atol=0)


def test_b36_yarn_temperature_table():
    def factor(**extra):
        return VariantsRotaryEmbedding(scaling("yarn") | extra, 12).rule.attention_factor

    grown = 0.1 * math.log(4.0) + 1
    assert factor() == pytest.approx(grown)
    assert factor(attention_factor=1.0) == 1.0
    assert factor(mscale=1.0, mscale_all_dim=1.0) == 1.0
    assert factor(attention_factor=1.5, mscale=0.5, mscale_all_dim=1.0) == 1.5


@pytest.mark.parametrize(
    "all_dim, expected", [(1.0, (0.1 * math.log(4.0) + 1) ** 2), (None, 1.0), (0.5, (0.05 * math.log(4.0) + 1) ** 2)]
)
def test_b36_mla_scale_takes_the_square_of_mscale_all_dim(all_dim, expected):
    extra = {} if all_dim is None else {"mscale": 1.0, "mscale_all_dim": all_dim}
    plan = VariantsConfig(**{**BASE, **MLA}, rope_parameters=scaling("yarn", 8) | extra).layer_plan()
    assert plan[0].scaling == pytest.approx(14**-0.5 * expected)
    gqa = VariantsConfig(**BASE, rope_parameters=scaling("yarn") | extra).layer_plan()
    assert gqa[0].scaling == pytest.approx(12**-0.5)


def test_b37_the_given_factor_rules_not_the_ratio_of_lengths():
    tables = [VariantsRotaryEmbedding(scaling("yarn", factor=factor), 12) for factor in (2.0, 4.0, 8.0)]
    factors = [table.rule.attention_factor for table in tables]
    assert factors == [pytest.approx(0.1 * math.log(f) + 1) for f in (2.0, 4.0, 8.0)]
    assert scaled_far(tables[0].inv_freq, tables[2].inv_freq) > 1e-4


def test_b37_a_missing_original_length_is_written_out():
    config = VariantsConfig(**BASE, rope_parameters={"rope_type": "yarn", "factor": 4.0})
    assert config.rope_parameters["original_max_position_embeddings"] == BASE["max_position_embeddings"]


@pytest.mark.parametrize("kind", SCALINGS)
def test_b38_old_keys_mean_the_same_as_new_ones(kind):
    new = VariantsConfig(**BASE, rope_parameters=scaling(kind))
    old = scaling(kind)
    theta = old.pop("rope_theta")
    old["type"] = old.pop("rope_type")
    assert VariantsConfig(**BASE, rope_theta=theta, rope_scaling=old).rope_parameters == new.rope_parameters


@pytest.mark.parametrize("name", [name for name in POSITIONS if tiny(name).position_embedding_type == "rope"])
def test_b38_round_trip_of_a_config(name, tmp_path):
    config = tiny(name)
    config.save_pretrained(tmp_path)
    again = VariantsConfig.from_pretrained(tmp_path)
    assert again.rope_parameters == config.rope_parameters and again.to_diff_dict() == config.to_diff_dict()
    tables = [build(c).model.rotary_emb for c in (config, again)]
    for key in config.rope_keys:
        assert torch.equal(tables[0][key].inv_freq, tables[1][key].inv_freq)


def test_b38_partial_rotation_is_applied_once(tmp_path):
    for config in (
        VariantsConfig(**BASE, partial_rotary_factor=0.5),
        VariantsConfig(**BASE, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
    ):
        config.save_pretrained(tmp_path)
        for each in (config, VariantsConfig.from_pretrained(tmp_path)):
            assert each.rotary_dim_of("default") == 6
            assert VariantsForCausalLM(each).model.rotary_emb["default"].inv_freq.shape == (3,)


@pytest.mark.parametrize("name", ["gqa", "yarn", "mla_llama3", "longrope", "dynamic", "sinusoidal", "alibi", "nested_yarn"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_b13_constants_stay_fp32_through_casts(name, dtype, tmp_path):
    model = build(tiny(name))
    model.save_pretrained(tmp_path)
    models = {
        "to": copy.deepcopy(model).to(dtype),
        "half or bfloat16": copy.deepcopy(model).half() if dtype == torch.float16 else copy.deepcopy(model).bfloat16(),
        "from_pretrained": VariantsForCausalLM.from_pretrained(tmp_path, dtype=dtype),
        "back": copy.deepcopy(model).to(dtype).float(),
    }
    constants = {key: value for key, value in model.named_buffers()}
    assert constants
    for how, cast in models.items():
        found = dict(cast.named_buffers())
        assert found.keys() == constants.keys()
        for key, value in constants.items():
            assert found[key].dtype == torch.float32 and torch.equal(found[key], value), (how, key)


@pytest.mark.parametrize("kind", ["default", *SCALINGS])
def test_b13_angles_far_out_are_exact_whatever_the_dtype(kind):
    rope = {"rope_type": "default", "rope_theta": 100.0} if kind == "default" else scaling(kind)
    config = VariantsConfig(**{**BASE, "max_position_embeddings": 200_000}, rope_parameters=rope)
    positions = torch.tensor([[0, 257, 100_000]])
    lengths = {which: torch.full((1, 3), 100_001) for which in ("prompt", "current")}
    table = VariantsForCausalLM(config).model.rotary_emb["default"]
    frequencies = table.rule.inv_freq_at(lengths["prompt"]) if table.rule.follows_length else table.inv_freq
    angles = positions.double().unsqueeze(-1) * frequencies.double()
    cast = VariantsForCausalLM(config).to(torch.bfloat16).model.rotary_emb["default"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under_autocast = table(positions, lengths, torch.bfloat16)
    for cos, sin in (table(positions, lengths, torch.float32), cast(positions, lengths, torch.bfloat16), under_autocast):
        scale = table.rule.attention_factor
        # 100 000 holds 7.8e-3 of rounding in fp32, a bfloat16 cosine 4e-3
        assert (cos.double() - angles.cos() * scale).abs().max() < 1e-2 * scale
        assert (sin.double() - angles.sin() * scale).abs().max() < 1e-2 * scale


@pytest.mark.parametrize("heads", range(1, 25))
def test_b58_alibi_slopes_equal_bloom(heads):
    mask = torch.ones(1, 3)
    native = build_alibi_tensor(mask, heads, torch.float32).view(heads, 3)
    torch.testing.assert_close(alibi_slopes(heads), native[:, 1], rtol=1e-6, atol=0)


def test_b58_alibi_slopes_of_six_heads():
    assert alibi_slopes(6).tolist() == pytest.approx([1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8])


def test_sinusoids_are_those_of_the_paper():
    config = tiny("sinusoidal_offset")
    table = SinusoidalPositions(config)(torch.zeros(1, 5, 32), torch.arange(5).unsqueeze(0))[0]
    for place in range(5):
        for i in range(16):
            angle = (place + 2) / 10000 ** (2 * i / 32)
            assert table[place, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[place, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize("name", ["learned", "learned_offset", "mla_learned"])
def test_a_position_beyond_a_learned_table_is_an_error(name):
    model = build(tiny(name, max_position_embeddings=8))
    assert logits_of(model, draw_ids(1, 8)).isfinite().all()
    with pytest.raises(ValueError, match="max_position_embeddings=8"):
        logits_of(model, draw_ids(1, 9))


@pytest.mark.parametrize("name", ["alibi", "sinusoidal", "no_positions", "gqa", "mla_alibi"])
def test_other_schemes_have_no_longest_row(name):
    model, ids = build(tiny(name, max_position_embeddings=8)), draw_ids(1, 20)
    assert scaled_far(logits_of(model, ids)[:, :9], logits_of(model, ids[:, :9])) <= TOLERANCE
