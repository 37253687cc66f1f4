"""Int8Linear: what the codes say in float32, close on torch's int8 kernel, and bit for bit the file's tensors."""

import copy

import pytest
import torch

from hf_variants.modeling.int8_linear import KERNEL_ROWS, Int8Linear
from hf_variants.quantize.rounding import quantize_groups
from tests.quantize.quantized import same
from tests.variants import far


def layer_and_weight(inputs=96, outputs=40, group=96, bias=True):
    weight = torch.randn(outputs, inputs) * 0.1
    codes = quantize_groups(weight, group, top=255, symmetric=True, scale_dtype=torch.bfloat16)
    # half of a step, and what rounding the scale may clip
    assert far(codes.dequantize(), weight) < 0.01 * weight.abs().max()
    return Int8Linear.from_codes(codes, torch.randn(outputs) if bias else None), codes.dequantize()


@pytest.mark.parametrize("rows", [1, 50])
@pytest.mark.parametrize("group", [32, 96, -1])
def test_float32_is_the_dense_product(rows, group):
    layer, weight = layer_and_weight(group=96 if group == -1 else group)
    x = torch.randn(2, rows, 96)
    assert torch.equal(layer.dequantize(), weight) and torch.equal(layer.to_codes().dequantize(), weight)
    assert far(layer(x), torch.nn.functional.linear(x, weight, layer.bias)) < 2e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("group", [32, 96])
@pytest.mark.parametrize("rows", [1, KERNEL_ROWS, KERNEL_ROWS + 1])
def test_half_precision_is_close_with_and_without_the_kernel(rows, group, dtype):
    layer, weight = layer_and_weight(group=group)
    x = torch.randn(rows, 96)
    expected = torch.nn.functional.linear(x, weight, layer.bias)
    layer = layer.to(dtype)
    assert layer.kernel_applies(x.to(dtype)) == (dtype == torch.bfloat16 and group == 96 and rows <= KERNEL_ROWS)
    result = layer(x.to(dtype))
    assert result.dtype == dtype and result.shape == expected.shape
    assert far(result, expected) < 0.02 * expected.abs().max().item()


def test_float16_does_not_overflow_where_the_dense_product_does_not():
    layer, weight = layer_and_weight(bias=False)
    x = 200 * torch.sign(weight[:1])
    expected = torch.nn.functional.linear(x, weight)
    assert far(layer.half()(x.half()), expected) < 0.01 * expected.abs().max()


def test_inputs_that_the_kernel_cannot_read_are_multiplied_densely():
    layer, weight = layer_and_weight(inputs=36, group=36, bias=False)
    x = torch.randn(1, 36)
    assert not layer.kernel_applies(x.bfloat16())
    assert far(layer.bfloat16()(x.bfloat16()), x @ weight.t()) < 0.03


def test_state_dict_is_bitwise_the_files_after_forward_casts_and_copies():
    layer, _ = layer_and_weight(bias=False)
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    layer(torch.randn(1, 96).bfloat16())
    assert layer.weight_packed.dtype == torch.int8 and same(before, layer)
    for dtype in (torch.float16, torch.float32, torch.float64):
        assert same(before, layer.to(dtype)) and layer.weight_packed.dtype == torch.int8
    other = copy.deepcopy(layer)
    x = torch.randn(1, 96)
    assert same(before, other) and other.weight_packed.dtype == torch.int8 and torch.equal(other(x), layer(x))
    fresh, _ = layer_and_weight(bias=False)
    fresh(x)
    for assign in (False, True):
        fresh.load_state_dict(layer.state_dict(), assign=assign)
        assert torch.equal(fresh(x), layer(x)) and same(before, fresh)
    # transformers sets buffers one by one, accelerate moves them so
    for moved in (before["weight_packed"].clone(), layer.weight_packed.clone()):
        fresh.weight_packed = moved
        assert torch.equal(fresh(x), layer(x)) and same(before, fresh)


def test_gradients_reach_the_input_on_every_path():
    for group in (32, 96):
        layer, weight = layer_and_weight(bias=False, group=group)
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.02)):
            x = torch.randn(2, 96, dtype=dtype, requires_grad=True)
            layer(x).float().sum().backward()
            assert far(x.grad, weight.sum(0).expand(2, -1)) < tolerance * weight.sum(0).abs().max().item()


def test_compiled_decoding_step_equals_eager():
    layer, _ = layer_and_weight()
    layer = layer.to(torch.bfloat16)
    x = torch.randn(1, 1, 96).bfloat16()
    with torch.no_grad():
        expected = copy.deepcopy(layer)(x)
        compiled = torch.compile(layer, fullgraph=True, backend="eager")
        assert torch.equal(compiled(x), expected) and torch.equal(compiled(x), expected)


def test_shapes_that_the_layout_cannot_hold_are_refused():
    with pytest.raises(ValueError, match="group_size=64 does not divide in_features=96"):
        Int8Linear(96, 32, 64)
    with pytest.raises(ValueError, match="in_features=6 is not a multiple of 4"):
        Int8Linear(6, 32, -1)
