"""AwqLinear: exact in float32, close on torch's int4 kernels, and bit for bit the file's tensors whatever happened."""

import copy

import pytest
import torch

from hf_variants.modeling.awq_linear import KERNEL_ROWS, AwqLinear
from hf_variants.quantize.rounding import quantize_groups
from tests.quantize.quantized import same
from tests.variants import far


def layer_and_weight(inputs=96, outputs=48, group=32, bias=True):
    codes = quantize_groups(torch.randn(outputs, inputs) * 0.1, group)
    return AwqLinear.from_codes(codes, torch.randn(outputs) if bias else None), codes.dequantize()


def snapshot(layer):
    return {name: tensor.clone() for name, tensor in layer.state_dict().items()}


@pytest.mark.parametrize("rows", [1, KERNEL_ROWS, 50])
@pytest.mark.parametrize("group", [32, 96, -1])
def test_float32_is_exactly_the_dense_product(rows, group):
    layer, weight = layer_and_weight(group=96 if group == -1 else group)
    x = torch.randn(2, rows, 96)
    assert torch.equal(layer.dequantize(), weight)
    assert far(layer(x), torch.nn.functional.linear(x, weight, layer.bias)) < 2e-6


@pytest.mark.parametrize("rows", [1, KERNEL_ROWS, KERNEL_ROWS + 1])
@pytest.mark.parametrize("outputs", [48, 40])
def test_bfloat16_is_close_with_and_without_the_kernel(rows, outputs):
    layer, weight = layer_and_weight(outputs=outputs)
    x = torch.randn(rows, 96)
    expected = torch.nn.functional.linear(x, weight, layer.bias)
    result = layer.to(torch.bfloat16)(x.bfloat16())
    assert result.dtype == torch.bfloat16 and result.shape == expected.shape
    assert far(result, expected) < 0.02 * expected.abs().max().item()
    # out_features 40 fits no kernel (multiples of 16), and many rows are multiplied densely
    assert (layer._kernel is not None) == (outputs == 48 and rows <= KERNEL_ROWS)


def test_state_dict_is_bitwise_the_files_after_forward_and_casts():
    layer, _ = layer_and_weight(bias=False)
    before = snapshot(layer)
    layer(torch.randn(1, 96).bfloat16())
    assert layer._kernel is not None and same(before, layer)
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        assert same(before, layer.to(dtype))
    assert layer._kernel is None
    assert same(before, layer.half()) and same(before, copy.deepcopy(layer))


def test_state_dict_is_bitwise_the_files_after_a_dense_product_casts_copies_and_loads():
    layer, weight = layer_and_weight(bias=False)
    before, x = snapshot(layer), torch.randn(KERNEL_ROWS + 1, 96)
    few = x[:2].bfloat16()
    expected = layer(few)
    kernel = layer._kernel[1]
    with torch.inference_mode():
        layer(x)
    # the order that unpacks fast is no second copy, and does not make the kernel's anew
    assert layer.qweight.dtype == torch.uint8 and layer.qweight.numel() == 96 * 48 // 2
    assert same(before, layer) and torch.equal(layer(few), expected) and layer._kernel[1] is kernel
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert same(before, layer.to(dtype)) and torch.equal(layer.dequantize(), weight)
    assert torch.equal(layer(few), expected) and torch.equal(layer.to_codes().dequantize(), weight)
    other = copy.deepcopy(layer)
    assert same(before, other) and torch.equal(other(x), layer(x))
    fresh, _ = layer_and_weight(bias=False)
    for assign in (False, True):
        fresh(x)
        fresh.load_state_dict(layer.state_dict(), assign=assign)
        assert same(before, fresh) and torch.equal(fresh(x), layer(x))
    # transformers sets buffers one by one, accelerate moves them so
    for name in ("qweight", "qzeros"):
        for moved in (before[name].clone(), getattr(layer, name).clone()):
            setattr(fresh, name, moved)
            assert same(before, fresh) and torch.equal(fresh(x), layer(x)) and torch.equal(fresh(few), expected)
    fresh(x.clone().requires_grad_()).sum().backward()


def test_the_kernels_copy_follows_a_load():
    first, _ = layer_and_weight(bias=False)
    second, weight = layer_and_weight(bias=False)
    x = torch.randn(1, 96).bfloat16()
    stale = first(x)
    for assign in (False, True):
        target = copy.deepcopy(first)
        target(x)
        target.load_state_dict(second.state_dict(), assign=assign)
        assert torch.equal(target(x), second(x)) and not torch.equal(target(x), stale)


def test_gradients_reach_the_input_on_every_path():
    layer, weight = layer_and_weight(bias=False)
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 0.02)):
        x = torch.randn(2, 96, dtype=dtype, requires_grad=True)
        layer(x).float().sum().backward()
        assert far(x.grad, weight.sum(0).expand(2, -1)) < tolerance * weight.sum(0).abs().max().item()


def test_compiled_decoding_step_equals_eager():
    layer, _ = layer_and_weight()
    layer = layer.to(torch.bfloat16)
    x = torch.randn(1, 1, 96).bfloat16()
    with torch.no_grad():
        expected = layer(x)
        compiled = torch.compile(layer, fullgraph=True, backend="eager")
        assert torch.equal(compiled(x), expected)


def test_shapes_that_the_layout_cannot_hold_are_refused():
    with pytest.raises(ValueError, match="group_size=64 does not divide in_features=96"):
        AwqLinear(96, 32, 64)
    with pytest.raises(ValueError, match="out_features=12 is not a multiple of 8"):
        AwqLinear(64, 12, 32)


def test_decoding_never_dequantises(monkeypatch):
    """What a layer around it asks of `weight` at each step would cost more than the product."""
    from hf_variants.quantize import quantize_rtn
    from tests.quantize.quantized import fitting
    from tests.variants import draw_ids

    model = quantize_rtn(fitting("gqa"), group_size=32).to_storage()
    ids, count = draw_ids(1, 4), []
    monkeypatch.setattr(AwqLinear, "dequantize", lambda self, dtype=None: count.append(self) or torch.zeros(1))
    with torch.no_grad():
        model(ids[:, :1])
    assert model.dtype == torch.bfloat16 and count == []


def test_compiled_products_of_many_rows_equal_eager():
    layer, _ = layer_and_weight()
    x = torch.randn(KERNEL_ROWS + 1, 96)
    with torch.no_grad():
        expected = copy.deepcopy(layer)(x)
        compiled = torch.compile(layer, fullgraph=True, backend="eager")
        assert torch.equal(compiled(x), expected) and torch.equal(compiled(x), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_kernel_is_close_to_the_dense_product():
    layer, weight = layer_and_weight(inputs=256, outputs=64, group=64)
    x = torch.randn(1, 256)
    expected = torch.nn.functional.linear(x, weight, layer.bias)
    result = layer.to("cuda", torch.bfloat16)(x.cuda().bfloat16())
    assert far(result.cpu(), expected) < 0.02 * expected.abs().max().item()
