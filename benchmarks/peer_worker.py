"""`python -m benchmarks.peer_worker SIDE SETTINGS`: one side of a comparison with a peer library, alone in its environment.

It builds the model of the settings (shape, weights file, threads), then answers lines of JSON on its standard input, one call
per line: {"do": "prefill" | "decode" | "train" | "peak", "batch", "length", "tokens"} gives {"wall", "cpu", "value"}.

Notable here: nothing is imported that the environment of a peer lacks (torch and safetensors are there), so the same file
serves the family, the native class and the peers. All sides carry the same weights, and compute the head of a prefill for the
last token alone, whether their library offers that or not.
"""

import json
import sys
import time

import torch

# so many logits of each row are compared with the other sides'
COMPARED = 256


def random_ids(shape, batch, length):
    """Token ids [batch, length], never 0; the same in every process."""
    return torch.randint(1, shape["vocab_size"], (batch, length), generator=torch.Generator().manual_seed(1))


class TransformersSide:
    """The native Llama, or the family's model of the same weights."""

    def __init__(self, shape, weights, ours):
        from transformers import LlamaConfig, LlamaForCausalLM

        model = LlamaForCausalLM(LlamaConfig(**shape)).eval()
        missing, unexpected = model.load_state_dict(weights, strict=False)
        if unexpected or set(missing) - {"lm_head.weight"}:
            raise ValueError(f"the weights file does not fit the native class: missing {missing}, unexpected {unexpected}")
        if ours:
            from hf_variants.convert import from_native

            model = from_native(model)
        self.model, self.table = model, model.get_input_embeddings().weight

    def prefill(self, ids):
        return self.model.eval()(ids, logits_to_keep=1, use_cache=False).logits[:, -1]

    def decode(self, ids, tokens):
        given = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
        return self.model.eval().generate(ids, attention_mask=torch.ones_like(ids), **given)[:, ids.shape[1] :]

    def train(self, ids):
        return self.model.train()(input_ids=ids, labels=ids, use_cache=False).loss


class LastToken(torch.nn.Module):
    """A head that is computed for the last token alone."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, states):
        return self.head(states[:, -1:])


class LitGPTSide:
    """LitGPT's GPT in Llama's shape, its generation, and the loss of its pretraining."""

    def __init__(self, shape, weights):
        from litgpt import GPT, Config

        heads, groups = shape["num_attention_heads"], shape["num_key_value_heads"]
        config = Config(
            name="peer",
            block_size=shape["max_position_embeddings"],
            vocab_size=shape["vocab_size"],
            padded_vocab_size=shape["vocab_size"],
            n_layer=shape["num_hidden_layers"],
            n_head=heads,
            n_query_groups=groups,
            n_embd=shape["hidden_size"],
            rotary_percentage=1.0,
            rope_base=shape["rope_theta"],
            parallel_residual=False,
            bias=False,
            norm_class_name="RMSNorm",
            norm_eps=shape["rms_norm_eps"],
            mlp_class_name="LLaMAMLP",
            intermediate_size=shape["intermediate_size"],
        )
        model = GPT(config)
        model.lm_head.weight = model.transformer.wte.weight
        model.load_state_dict(self.renamed(weights, config.n_layer))
        self.model, self.head, self.last, self.table = model, model.lm_head, LastToken(model.lm_head), model.lm_head.weight

    @staticmethod
    def renamed(weights, layers):
        """Llama's weights under LitGPT's names."""
        found = {
            "lm_head.weight": weights["model.embed_tokens.weight"],
            "transformer.ln_f.weight": weights["model.norm.weight"],
        }
        found["transformer.wte.weight"] = found["lm_head.weight"]
        for layer in range(layers):
            part = {key: weights[f"model.layers.{layer}.{key}.weight"] for key in LLAMA_LAYER}
            new = f"transformer.h.{layer}"
            found[f"{new}.attn.qkv.weight"] = torch.cat([part[f"self_attn.{name}_proj"] for name in "qkv"])
            for theirs, llama in {
                **{"norm_1": "input_layernorm", "norm_2": "post_attention_layernorm", "attn.proj": "self_attn.o_proj"},
                **{"mlp.fc_1": "mlp.gate_proj", "mlp.fc_2": "mlp.up_proj", "mlp.proj": "mlp.down_proj"},
            }.items():
                found[f"{new}.{theirs}.weight"] = part[llama]
        return found

    def prefill(self, ids):
        self.model.eval().lm_head = self.last
        try:
            return self.model(ids)[:, -1]
        finally:
            self.model.lm_head = self.head

    def decode(self, ids, tokens):
        from litgpt.generate.base import generate

        total = ids.shape[1] + tokens
        if self.model.mask_cache is None or self.model.max_seq_length != total:
            self.model.max_seq_length = total
            self.model.set_kv_cache(batch_size=1)
        return generate(self.model.eval(), ids[0], total, temperature=0.0, top_p=0.0, include_prompt=False)[None]

    def train(self, ids):
        from litgpt.utils import chunked_cross_entropy

        self.model.clear_kv_cache()
        self.model.max_seq_length = ids.shape[1]
        return chunked_cross_entropy(self.model.train()(ids)[:, :-1].contiguous(), ids[:, 1:].contiguous())


class XTransformersSide:
    """x-transformers' decoder in Llama's shape, in its autoregressive wrapper."""

    def __init__(self, shape, weights):
        from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

        width, heads = shape["hidden_size"], shape["num_attention_heads"]
        layers = Decoder(
            dim=width,
            depth=shape["num_hidden_layers"],
            heads=heads,
            attn_kv_heads=shape["num_key_value_heads"],
            attn_dim_head=width // heads,
            attn_flash=True,
            rotary_pos_emb=True,
            rotary_emb_dim=width // heads,
            use_rmsnorm=True,
            norm_add_unit_offset=False,
            ff_glu=True,
            ff_swish=True,
            ff_no_bias=True,
            ff_mult=shape["intermediate_size"] / width,
        )
        length = shape["max_position_embeddings"]
        options = {"num_tokens": shape["vocab_size"], "max_seq_len": length, "use_abs_pos_emb": False}
        self.model = TransformerWrapper(**options, attn_layers=layers, tie_embedding=True, tie_embedding_scale=1.0)
        self.fill(shape, weights)
        self.wrapper, self.table = AutoregressiveWrapper(self.model), self.model.token_emb.emb.weight

    @torch.no_grad()
    def fill(self, shape, weights):
        """Llama's weights; theirs has one matrix for gate and up."""
        stack, dim = self.model.attn_layers, shape["hidden_size"] // shape["num_attention_heads"]
        self.grouping = (shape["num_key_value_heads"], -1, dim)
        stack.rotary_pos_emb.inv_freq.copy_(shape["rope_theta"] ** -(torch.arange(0, dim, 2).float() / dim))
        self.model.token_emb.emb.weight.copy_(weights["model.embed_tokens.weight"])
        stack.final_norm.g.copy_(weights["model.norm.weight"])
        for number, (norms, block, _) in enumerate(stack.layers):
            part = {key: weights[f"model.layers.{number // 2}.{key}.weight"] for key in LLAMA_LAYER}
            if number % 2 == 0:
                norms[0].g.copy_(part["input_layernorm"])
                query, out = part["self_attn.q_proj"], part["self_attn.o_proj"]
                block.to_q.weight.copy_(self.turned(self.strided(query), dim))
                block.to_k.weight.copy_(self.turned(part["self_attn.k_proj"], dim))
                block.to_v.weight.copy_(part["self_attn.v_proj"])
                block.to_out.weight.copy_(self.strided(out.t()).t())
            else:
                norms[0].g.copy_(part["post_attention_layernorm"])
                first, *_, last = (module for module in block.ff if any(True for _ in module.parameters()))
                first.proj.weight.copy_(torch.cat((part["mlp.up_proj"], part["mlp.gate_proj"])))
                first.proj.bias.zero_()
                last.weight.copy_(part["mlp.down_proj"])

    def strided(self, rows):
        """Rows of query heads [heads * D, ...], where head i shares key-value head i mod groups instead of i // groups."""
        return rows.unflatten(0, self.grouping).transpose(0, 1).flatten(0, 2)

    @staticmethod
    def turned(rows, dim):
        """Rows of heads whose rotary turns dimensions 2i and 2i + 1 together instead of i and i + D / 2."""
        return rows.unflatten(0, (-1, 2, dim // 2)).transpose(1, 2).flatten(0, 2)

    def prefill(self, ids):
        return self.model.to_logits(self.model.eval()(ids, return_embeddings=True)[:, -1])

    def decode(self, ids, tokens):
        return self.wrapper.eval().generate(ids, tokens, temperature=0.0, cache_kv=True)

    def train(self, ids):
        return self.wrapper.train()(ids)


LLAMA_LAYER = (
    *("input_layernorm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    *(f"self_attn.{name}_proj" for name in "qkvo"),
)
SIDES = {
    "native": lambda shape, weights: TransformersSide(shape, weights, ours=False),
    "ours": lambda shape, weights: TransformersSide(shape, weights, ours=True),
    "litgpt": LitGPTSide,
    "x-transformers": XTransformersSide,
}


def answer(side, shape, asked):
    """{"wall", "cpu": seconds of one call, "value": numbers that all sides must agree on}, or {"peak": bytes} of training."""
    if asked["do"] == "peak":
        return {"peak": peak_of_training(side, random_ids(shape, asked["batch"], asked["length"]))}
    ids = random_ids(shape, asked["batch"], asked["length"])
    side.table.grad = None
    for parameter in side.model.parameters():
        parameter.grad = None
    wall, cpu = time.perf_counter(), time.process_time()
    if asked["do"] == "train":
        loss = side.train(ids)
        loss.backward()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return {"wall": wall, "cpu": cpu, "value": [loss.item(), side.table.grad.float().norm().item()]}
    with torch.no_grad():
        value = side.prefill(ids) if asked["do"] == "prefill" else side.decode(ids, asked["tokens"])
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall": wall, "cpu": cpu, "value": value[:, :COMPARED].flatten().tolist()}


def peak_of_training(side, ids):
    """Bytes of resident memory at the height of one step, weights included, what libraries take left out."""
    from benchmarks.peak import resident, settle

    settle()
    side.train(ids).backward()
    return resident("VmHWM")


def main(name, settings):
    from safetensors.torch import load_file

    replies, sys.stdout = sys.stdout, sys.stderr  # what a library prints is no reply
    given = json.loads(settings)
    torch.set_num_threads(given["threads"])
    from benchmarks.peak import resident, settle

    torch.manual_seed(0)
    import_everything(name)
    settle()
    empty = resident("VmRSS")
    side = SIDES[name](given["shape"], load_file(given["weights"]))
    for line in iter(sys.stdin.readline, ""):
        found = answer(side, given["shape"], json.loads(line))
        if "peak" in found:
            found["peak"] -= empty
        print(json.dumps(found), file=replies, flush=True)


def import_everything(name):
    """The libraries of a side, so that a peak does not count them."""
    if name == "litgpt":
        import litgpt.generate.base  # noqa: F401
    elif name == "x-transformers":
        import x_transformers  # noqa: F401
    else:
        from transformers import LlamaForCausalLM  # noqa: F401

        if name == "ours":
            from hf_variants import VariantsForCausalLM  # noqa: F401
            from hf_variants.convert import from_native  # noqa: F401


if __name__ == "__main__":
    main(*sys.argv[1:])
