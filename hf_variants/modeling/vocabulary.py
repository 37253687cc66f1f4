"""The words of the family: every choice that a config field can take, in one line with its source.

Notable here: plain data, no torch. The config validates against it, the error texts and the command line quote it, the
documentation page of the options is generated from it, and a test asserts that the dispatch tables of the modules have
exactly these keys.
"""

CHOICES = {
    "attention_type": {
        "gqa": "Grouped-query attention; `num_key_value_heads` sets the groups (Ainslie et al. 2023, arXiv:2305.13245).",
        "mla": "Multi-head latent attention: a shared low-rank latent is cached (DeepSeek-V2 2024, arXiv:2405.04434 §2.1).",
        "mha": "Shorthand for `gqa` with one key-value head per query head (Vaswani et al. 2017, arXiv:1706.03762 §3.2).",
        "mqa": "Shorthand for `gqa` with a single key-value head (Shazeer 2019, arXiv:1911.02150).",
    },
    "layer_types": {
        "full_attention": "Every visible token (all of them, or all up to the query when causal).",
        "sliding_attention": "The last `sliding_window` tokens, the query included (Beltagy et al. 2020, arXiv:2004.05150).",
        "chunked_attention": "The tokens of the query's own chunk of `attention_chunk_size` (Llama 4).",
    },
    "mlp_layer_types": {
        "dense": "One feed-forward network.",
        "sparse": "Routed experts, with optional shared experts.",
    },
    "qk_norm": {
        "none": "Queries and keys as projected.",
        "head": "RMSNorm of each head with a learned weight of `head_dim` (Henry et al. 2020, arXiv:2010.04245; Qwen3).",
        "per_head": "As `head`, but every head has a weight of its own, and no bias (Cohere, StableLM 2).",
        "full": "RMSNorm across all heads with a weight per channel (OLMo 2, arXiv:2501.00656 §3.1).",
        "l2": "Each head divided by its root mean square, without a weight (Llama 4).",
    },
    "qk_norm_layers": {
        "all": "Every layer.",
        "rope": "Layers whose queries and keys are rotated (Llama 4).",
    },
    "attn_output_gate": {
        "none": "Heads as summed.",
        "channel": "Each channel times sigmoid(W x) before `o_proj` (Qiu et al. 2025, arXiv:2505.06708; AFMoE).",
        "head": "Each head times one such gate (ibid. §3.2).",
    },
    "attn_temperature_layers": {
        "all": "Every layer (Ministral 3).",
        "nope": "Layers whose queries are not rotated (Llama 4).",
    },
    "position_embedding_type": {
        "rope": "Rotary embedding of queries and keys (Su et al. 2021, arXiv:2104.09864).",
        "alibi": "A slope per head times the distance, added to the scores (Press et al. 2021, arXiv:2108.12409).",
        "relative": "A trained number per head and bucket of distances, added to the scores (T5 2020, arXiv:1910.10683 §2.1).",
        "learned": "A trained table added to the embeddings (GPT-2).",
        "learned_relative": "Both `learned` and `relative` (MPNet 2020, arXiv:2004.09297 §3.1).",
        "sinusoidal": "Sines and cosines added to the embeddings (Vaswani et al. 2017, arXiv:1706.03762 §3.5).",
        "sinusoidal_halves": "All sines, then all cosines, frequencies over H/2 - 1 (tensor2tensor; XGLM, M2M-100).",
        "sinusoidal_concat": "The frequencies of `sinusoidal`, all sines, then all cosines (CTRL, arXiv:1909.05858).",
        "none": "No position signal; the causal mask alone orders the tokens (Kazemnejad et al. 2023, arXiv:2305.19466).",
    },
    "sinusoid_dtype": {
        "float32": "Angles of sinusoids in single precision (CTRL, XGLM).",
        "float64": "Angles in double precision, the sines then rounded: exact at far positions (Marian, Pegasus).",
    },
    "position_source": {
        "attention_mask": "Counted over the tokens that the mask shows, from 0.",
        "input_ids": "Counted over the ids that are no pads; a pad takes the row before the first (fairseq; RoBERTa).",
    },
    "task_head": {
        "linear": "A bare projection of the pooled state, without a bias.",
        "biased_linear": "A projection of the pooled state with a bias (XLM 2019, arXiv:1901.07291).",
        "pooler": "A projection of the pooler's output (BERT 2018, arXiv:1810.04805 §4.1).",
        "dense": "Dense layer, activation, dropout, projection (DistilBERT 2019, arXiv:1910.01108).",
        "dropped_dense": "As `dense`, the pooled state dropped first (RoBERTa 2019, arXiv:1907.11692; ELECTRA).",
        "transform": "The dense layer and norm of the language-model head before every classifier (ModernBERT).",
    },
    "classifier_pooling": {
        "first": "The state of the first real token (BERT's [CLS]).",
        "last": "The state of the last real token, which alone has seen the row when causal (GPT 2018).",
        "mean": "The mean of the states of the real tokens.",
        "late": "The mean of the logits of the real tokens (EuroBERT 2025, arXiv:2503.05500).",
    },
    "rope_type": {
        "default": "theta^(-2i/d), unscaled (Su et al. 2021, arXiv:2104.09864).",
        "linear": "Positions divided by `factor` (Chen et al. 2023, arXiv:2306.15595).",
        "ntk": "Static NTK-aware base: theta * factor^(d/(d-2)) (bloc97 2023; Peng et al. 2023, arXiv:2309.00071 §3.1).",
        "dynamic": "NTK-aware base that follows the length of the row (Peng et al. 2023, arXiv:2309.00071 §3.3).",
        "yarn": "Three bands of frequencies and a temperature (Peng et al. 2023, arXiv:2309.00071 §3.4).",
        "llama3": "Frequencies below a wavelength band divided by `factor`, smoothed within it (Llama 3.1).",
        "longrope": "One searched factor per frequency, short and long (Ding et al. 2024, arXiv:2402.13753).",
    },
    "mlp_type": {
        "gated": "down(act(gate(x)) * up(x)) (Shazeer 2020, arXiv:2002.05202).",
        "plain": "down(act(up(x))) (Vaswani et al. 2017, arXiv:1706.03762 §3.3).",
    },
    "router_scoring": {
        "softmax": "Probabilities over all experts (Shazeer et al. 2017, arXiv:1701.06538).",
        "sigmoid": "An independent affinity per expert (DeepSeek-V3 2024, arXiv:2412.19437 §2.1.2).",
        "sparsemixer": "One expert after the other, each a softmax over near rivals; sampled in training (arXiv:2409.12136).",
    },
    "router_selection": {
        "scores": "Experts are chosen by their scores, plus the selection bias (DeepSeek-V3).",
        "logits": "Experts are chosen by their logits, plus the selection bias (Kolibri 1).",
    },
    "router_balance": {
        "none": "No balancing.",
        "aux_loss": "Balance loss E * sum(f * P) of each layer, averaged (Fedus et al. 2021, arXiv:2101.03961 §2.2).",
        "bias": "A selection bias moved by the sign of the load, no loss (Wang et al. 2024, arXiv:2408.15664).",
    },
    "norm_type": {
        "rmsnorm": "x / sqrt(mean(x^2) + eps) * w (Zhang & Sennrich 2019, arXiv:1910.07467).",
        "layernorm": "(x - mean) / sqrt(var + eps) * w + b (Ba et al. 2016, arXiv:1607.06450).",
    },
    "norm_placement": {
        "pre": "x + f(norm(x)) (Xiong et al. 2020, arXiv:2002.04745).",
        "pre_normed_residual": "n = norm(x); n + f(n): the residual is taken after the norm (BLOOM's switch).",
        "post": "x + norm(f(x)): the norm inside the residual (OLMo 2, arXiv:2501.00656).",
        "post_ln": "norm(x + f(x)): the original post-LN (Vaswani et al. 2017, arXiv:1706.03762).",
        "sandwich": "x + norm(f(norm(x))) (Ding et al. 2021, arXiv:2105.13290; Gemma 2).",
        "parallel": "x + attention(n) + mlp(n) with n = norm(x) (GPT-J; PaLM 2022, arXiv:2204.02311 §2).",
        "parallel_two_norms": "x + attention(norm1(x)) + mlp(norm2(x)) (GPT-NeoX-20B, arXiv:2204.06745).",
    },
    "embedding_projection": {
        "sum": "The sum of the tables is projected to hidden_size, behind its norm and dropout (ELECTRA).",
        "tokens": "The token table alone is projected, without a bias, and so is the way back to the head (OPT 350M).",
    },
    "decoder_start": {
        "token": "Decoder inputs begin with `decoder_start_token_id`, the labels behind it (T5 2020, arXiv:1910.10683).",
        "last_token": "The last label that is no pad stands first: the language's token (mBART 2020, arXiv:2001.08210).",
    },
    "embedding_multiplier_scope": {
        "inputs_embeds": "Multiplies whatever enters the first layer, given embeddings too (Granite).",
        "input_ids": "Multiplies the looked-up rows only, the factor rounded to the weights' dtype (Gemma).",
    },
}

# Position schemes with a trained table of positions, with a trained bias on the scores, and with any bias on them.
LEARNED = ("learned", "learned_relative")
RELATIVE = ("relative", "learned_relative")
BIASED = ("alibi", *RELATIVE)

# Required and optional keys of `rope_parameters` beside rope_type, rope_theta and partial_rotary_factor.
ROPE_KEYS = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "ntk": (("factor",), ()),
    "dynamic": (("factor",), ("original_max_position_embeddings",)),
    "yarn": (
        ("factor",),
        (
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ),
    ),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor"), ("original_max_position_embeddings",)),
    "longrope": (
        ("short_factor", "long_factor", "factor"),
        ("original_max_position_embeddings", "attention_factor", "short_mscale", "long_mscale"),
    ),
}


def nearest(word, known):
    """The known word closest to a misspelt one, as ` (did you mean 'x'?)`, or an empty string."""
    from difflib import get_close_matches

    spelt = {str(item).lower(): str(item) for item in known}
    close = get_close_matches(str(word).lower(), list(spelt), n=1, cutoff=0.6)
    return f" (did you mean {spelt[close[0]]!r}?)" if close else ""
