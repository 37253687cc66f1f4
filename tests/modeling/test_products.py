"""The kernels that stand in for a linear layer give its numbers, in value and gradient, and step aside where it is more."""

import pytest
import torch

from hf_variants import VariantsConfig, VariantsForCausalLM
from hf_variants.modeling import products
from hf_variants.modeling.products import few_rows_linear, onednn_linear, project
from tests.variants import far

SERVED = products.prefers_other_kernels
needs_kernel = pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="torch without oneDNN")


@pytest.fixture(autouse=True)
def on_a_served_processor(monkeypatch):
    monkeypatch.setattr(products, "prefers_other_kernels", lambda: True)


@needs_kernel
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 33, 64, 65])
def test_each_kernel_multiplies_as_torch_does(rows, bias):
    torch.manual_seed(rows)
    layer, x = torch.nn.Linear(200, 300, bias=bias), torch.randn(rows, 200)
    expected = layer(x)
    weights = layer.weight, layer.bias
    with torch.no_grad():
        assert far(few_rows_linear(x, *weights), expected) < 1e-5
        assert far(onednn_linear(x, *weights), expected) < 1e-5
        found = project(layer, x.view(rows, 1, 200))
        assert found.shape == (rows, 1, 300) and found.is_contiguous() and far(found[:, 0], expected) < 1e-5
    x, again = (x.clone().requires_grad_() for _ in range(2))
    layer(x).square().sum().backward()
    grads = [part.grad.clone() for part in layer.parameters()]
    layer.zero_grad()
    found = project(layer.train(), again)
    assert type(found.grad_fn).__name__ == "LinearFunctionBackward"
    found.square().sum().backward()
    for ours, plain in zip([again.grad, *(part.grad for part in layer.parameters())], [x.grad, *grads], strict=True):
        assert far(ours, plain) < 1e-4 * plain.abs().max()


def test_a_layer_that_is_more_is_called(monkeypatch):
    for name in ("few_rows_linear", "onednn_linear"):
        monkeypatch.setattr(products, name, lambda *args: pytest.fail("the layer was not called"))
    x, plain = torch.randn(1, 200), torch.nn.Linear(200, 300)
    hooked, half, tiny = torch.nn.Linear(200, 300), torch.nn.Linear(200, 300).bfloat16(), torch.nn.Linear(4, 4)
    hooked.register_forward_pre_hook(lambda module, args: None)

    class More(torch.nn.Linear):
        pass

    with torch.no_grad():
        assert project(hooked, x).shape == (1, 300)
        assert project(half, x.bfloat16()).dtype == torch.bfloat16
        assert project(tiny, torch.randn(1, 4)).shape == (1, 4)
        assert project(More(200, 300), x).shape == (1, 300)
        assert project(plain, torch.randn(65, 200)).shape == (65, 300)
        with torch.autocast("cpu", torch.bfloat16):
            assert project(plain, x).dtype == torch.bfloat16
    # outside of training a whole forward rounds as torch does
    assert torch.equal(project(plain.eval(), x), plain(x))


@pytest.mark.parametrize(
    "options", [{}, {"mlp_type": "plain", "hidden_act": "gelu"}, {"attention_type": "mla", "kv_lora_rank": 64}]
)
def test_decoding_and_training_do_not_depend_on_the_processor(options, monkeypatch):
    shape = {"vocab_size": 300, "hidden_size": 192, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    if options.get("attention_type") == "mla":
        options = {**options, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
    torch.manual_seed(0)
    model = VariantsForCausalLM(VariantsConfig(**shape, **options))
    ids = torch.randint(1, 300, (2, 20))

    def run():
        model.zero_grad()
        rows = model.eval().generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)
        loss = model.train()(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        return rows, loss.detach(), {name: part.grad.clone() for name, part in model.named_parameters()}

    found = run()
    monkeypatch.setattr(products, "prefers_other_kernels", lambda: False)
    plain = run()
    assert torch.equal(found[0], plain[0]) and abs(found[1] - plain[1]) < 1e-5
    for name, gradient in plain[2].items():
        assert far(found[2][name], gradient) < 1e-5, name


def test_the_processor_decides_once():
    assert SERVED() is SERVED()


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_a_compiled_graph_holds_the_plain_product_whole(rows, monkeypatch):
    """A graph must not look at the processor's name: that cannot be traced."""
    monkeypatch.setattr(products, "prefers_other_kernels", SERVED)
    layer, x = torch.nn.Linear(256, 256), torch.randn(1, rows, 256)
    assert layer.weight.numel() >= products.SMALLEST
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(lambda states: products.project(layer, states), fullgraph=True, backend="aot_eager")
        assert far(compiled(x), layer(x)) < 1e-6
    torch._dynamo.reset()


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0,)])
def test_no_rows_have_a_gradient_of_no_rows(shape):
    x, weight = torch.randn(*shape, 16, requires_grad=True), torch.randn(8, 16, requires_grad=True)
    for graph in (False, True):
        out = products.LinearFunction.apply(x, weight, None)
        grad_x, grad_weight = torch.autograd.grad(out.sum(), (x, weight), create_graph=graph)
        assert grad_x.shape == x.shape and not grad_weight.any()
