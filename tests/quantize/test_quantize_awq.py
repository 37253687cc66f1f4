"""quantize_awq and quantize_rtn: what they gain, what they report, what they refuse (known failures B54 and B55)."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_variants.quantize import quantize_awq, quantize_rtn, save_quantized
from tests.quantize.quantized import FITTING_EXPERTS, FITTING_MLA, calibration, fitting
from tests.variants import draw_ids, far


def with_loud_channels(model, factor=30.0):
    """Make a few channels of every normed input large, as in trained models: what AWQ is for."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("layernorm.weight"):
                parameter[::16] *= factor
    return model


def logits_error(model, result, seed=9):
    ids = draw_ids(4, 32, seed=seed)
    with torch.no_grad():
        return float((result.model(ids).logits - model(ids).logits).square().mean())


@pytest.mark.parametrize("clip", [True, False])
def test_awq_beats_rounding_where_channels_are_uneven(clip):
    model = with_loud_channels(fitting())
    rounded = quantize_rtn(model, group_size=32)
    aware = quantize_awq(model, calibration(), group_size=32, clip=clip)
    assert logits_error(model, aware) < 0.7 * logits_error(model, rounded)


@pytest.mark.parametrize("name", ["gqa", "parallel", "post", "plain", "layernorm", "attention_bias", "qk_full"])
def test_no_site_ends_worse_than_doing_nothing(name):
    result = quantize_awq(fitting(name), calibration(), group_size=32)
    sites = [site for layer in result.report.layers for site in layer["sites"]]
    assert sites and all(site["loss"] <= site["loss_unsmoothed"] for site in sites)
    assert any(site["loss"] < 0.999 * site["loss_unsmoothed"] for site in sites)
    assert all(0 < layer["output_error"] < 0.1 for layer in result.report.layers)


def test_the_given_model_is_left_as_it_is():
    model = fitting("moe_shared_gate", **FITTING_EXPERTS)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    quantize_awq(model, calibration(), group_size=32)
    assert getattr(model.config, "quantization_config", None) is None
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_b54_dense_first_mixture_under_mla():
    model = fitting("moe_mla", mlp_layer_types=["dense", "sparse"], **FITTING_MLA, moe_intermediate_size=32)
    result = quantize_awq(model, calibration(), group_size=32)
    names = set(result.codes)
    experts = {f"model.layers.1.mlp.experts.{e}.{m}_proj" for e in range(4) for m in ("gate", "up", "down")}
    assert experts <= names
    assert {f"model.layers.0.mlp.{m}_proj" for m in ("gate", "up", "down")} <= names
    assert {f"model.layers.{n}.self_attn.{m}" for n in (0, 1) for m in ("q_a_proj", "q_b_proj", "kv_b_proj")} <= names
    assert result.report.unquantized_modules == ["lm_head", "model.layers.1.mlp.gate"]
    assert result.report.quantized_parameters == sum(codes.codes.numel() for codes in result.codes.values())
    tokens = result.report.tokens_per_expert
    assert sum(tokens.values()) == 2 * result.report.calibration["tokens"] == 2 * 16 * 32


def test_b54_an_expert_that_no_token_reaches_is_rounded_and_named():
    model = fitting("moe_bias_balance", **FITTING_EXPERTS)
    starved = "model.layers.1.mlp.experts.2"
    with torch.no_grad():
        model.model.layers[1].mlp.gate.e_score_correction_bias[2] = -1e4
    result = quantize_awq(model, calibration(), group_size=32)
    assert starved in result.report.starved_experts
    assert result.report.tokens_per_expert[starved] == 0
    assert f"{starved}.down_proj" in result.codes
    assert f"{starved}.up_proj -> experts.*.down_proj" in result.report.skipped_sites
    assert f"{len(result.report.starved_experts)} experts saw too few" in result.report.warnings[0]
    assert torch.isfinite(result.model(draw_ids(2, 16)).logits).all()


def test_dead_input_channels_do_no_harm():
    model = fitting()
    with torch.no_grad():
        model.model.layers[0].input_layernorm.weight[:8] = 0.0
        model.model.layers[1].self_attn.q_proj.weight[:, :32] = 0.0
    result = quantize_awq(model, calibration(), group_size=32)
    assert torch.isfinite(result.model(draw_ids(2, 16)).logits).all()
    assert all(layer["output_error"] < 0.1 for layer in result.report.layers)


def test_texts_of_any_length_are_packed_and_what_is_left_is_counted():
    texts = [draw_ids(1, n, seed=n)[0].tolist() for n in (3, 70, 1, 200)]
    result = quantize_awq(fitting(), texts, group_size=32, calibration_length=32)
    assert result.report.calibration == {"windows": 8, "window_tokens": 32, "tokens": 256, "dropped_tokens": 18}
    short = quantize_awq(fitting(), [draw_ids(1, 40)[0].tolist()], group_size=32)
    assert short.report.calibration["tokens"] == 40


def test_a_learned_table_limits_the_windows():
    result = quantize_awq(fitting("learned"), calibration(4, 200), group_size=32)
    assert result.report.calibration["window_tokens"] == 64


def test_progress_is_reported_per_layer():
    seen = []
    quantize_awq(fitting(), calibration(2), group_size=32, progress=lambda *event: seen.append(event))
    quantize_rtn(fitting(), group_size=32, progress=lambda *event: seen.append(event))
    assert seen == [(1, 2, "model.layers.0"), (2, 2, "model.layers.1")] * 2


def test_b55_group_sizes_that_do_not_fit_are_refused_before_any_work():
    model = fitting(intermediate_size=80)
    with pytest.raises(ValueError) as refused:
        quantize_awq(model, calibration(), group_size=32)
    text = str(refused.value)
    assert "model.layers.0.mlp.down_proj: in_features=80 is not a multiple of group_size=32" in text
    assert "model.layers.1.mlp.down_proj" in text and "[-1]" in text and "q_proj" not in text
    kept = quantize_awq(model, calibration(), group_size=32, leave_unquantized=["model.layers.*.mlp.down_proj"])
    assert "model.layers.1.mlp.down_proj" in kept.report.unquantized_modules
    assert "model.layers.1.mlp.up_proj -> down_proj" in kept.report.skipped_sites
    per_channel = quantize_awq(model, calibration(), group_size=-1)
    assert per_channel.codes["model.layers.0.mlp.down_proj"].scales.shape == (64, 1)


def test_outputs_that_fill_no_word_are_refused():
    with pytest.raises(ValueError, match=r"v_proj: out_features=\d+ is not a multiple of 8"):
        quantize_rtn(fitting(head_dim=14, num_key_value_heads=2), group_size=-1)


def test_leaving_one_projection_dense_still_smooths_its_siblings():
    model = with_loud_channels(fitting())
    result = quantize_awq(model, calibration(), group_size=32, leave_unquantized=["model.layers.0.self_attn.q_proj"])
    assert "model.layers.0.self_attn.q_proj" not in result.codes
    assert logits_error(model, result) < logits_error(model, quantize_rtn(model, group_size=32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 3}, r"bits=3 .* choose from \[4\]"),
        ({"group_size": 48}, r"group_size=48 .* choose from"),
        ({"group_size": 0}, r"group_size=0 .* choose from"),
        ({"leave_unquantized": ["model.layers.0.self_attn.query"]}, "did you mean 'model.layers.0.self_attn"),
        ({"leave_unquantized": "*.o_proj"}, r"leave_unquantized='\*.o_proj' is a string; give a list"),
        ({"leave_unquantized": ["*"]}, "leaves all 14 matrices dense, so nothing would be quantised"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        quantize_awq(fitting(), calibration(), **{"group_size": 32, **options})


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "no tokens"),
        ([[1, 2, 99]], r"from 1 to 99, outside \[0, vocab_size=61\)"),
        ([[1, 2, 3], [4]], "calibration_ids holds 4 tokens, too few to calibrate on: give at least 32"),
        ("in the beginning", "holds text; give token ids"),
        (["in the", "beginning"], "holds text; give token ids"),
        (torch.rand(4, 32), "torch.float32, which are no token ids"),
    ],
)
def test_calibration_that_cannot_be_is_refused(ids, message):
    with pytest.raises(ValueError, match=message):
        quantize_awq(fitting(), ids, group_size=32)


def test_values_that_are_not_finite_name_their_layer():
    broken = fitting()
    broken.model.layers[1].mlp.up_proj.weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"model\.layers\.1\.mlp\.up_proj\.weight holds NaN"):
        quantize_awq(broken, calibration(), group_size=32)
    overflowing = fitting()
    overflowing.model.layers[0].post_attention_layernorm.weight.data.fill_(3e38)
    with pytest.raises(ValueError, match=r"NaN or infinite inputs to model\.layers\.0\.mlp\.gate_proj"):
        quantize_awq(overflowing, calibration(), group_size=32)


def test_a_dtype_that_cannot_hold_what_stays_dense_is_refused():
    outside, inside = fitting(), fitting()
    # a token that no probe meets by chance alone
    outside.model.embed_tokens.weight.data[60, 0] = 1e5
    inside.model.layers[1].input_layernorm.weight.data[0] = 1e5
    for model, name in ((outside, "model.embed_tokens"), (inside, "model.layers.1.input_layernorm")):
        with pytest.raises(ValueError, match=rf"{name}.weight holds values up to 1e\+05, which are infinite in torch.float16"):
            quantize_rtn(model, group_size=32, dtype=torch.float16)


def test_weights_below_every_scale_are_told():
    model = fitting()
    model.model.layers[1].mlp.up_proj.weight.data *= 1e-8
    assert "miss most of their weights" in quantize_rtn(model, group_size=32).report.warnings[0]
    assert quantize_rtn(fitting(), group_size=32).report.warnings == []


def test_an_already_quantised_model_is_refused():
    result = quantize_rtn(fitting(), group_size=32)
    with pytest.raises(ValueError, match="already quantised .*'awq'"):
        quantize_rtn(result.model, group_size=32)


def test_an_already_quantised_folder_is_refused_by_its_method(tmp_path):
    result = quantize_rtn(fitting(), group_size=32)
    save_quantized(result, tmp_path / "awq")
    with pytest.raises(ValueError, match="already quantised .*'awq'"):
        quantize_rtn(AutoModelForCausalLM.from_pretrained(tmp_path / "awq"), group_size=32)


def test_rounding_equals_rounding_every_weight_by_itself():
    model = fitting("moe_plain", **FITTING_EXPERTS)
    result = quantize_rtn(model, group_size=32, dtype=torch.float32)
    fused = model.model.layers[0].mlp.experts.up_proj[3]
    step = result.codes["model.layers.0.mlp.experts.3.up_proj"].scales.float().repeat_interleave(32, dim=1)
    rounded = result.model.get_submodule("model.layers.0.mlp.experts.3.up_proj").weight
    assert ((rounded - fused).abs() <= step * 1.01).all()
    assert far(result.model.lm_head.weight, model.lm_head.weight) == 0
