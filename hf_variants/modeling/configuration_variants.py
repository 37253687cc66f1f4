"""The config of the family: every published choice of a Transformer stack as one flat, checked key.

Notable here: keys are transformers' own wherever they exist; a misspelt key is an error; what is left None is resolved once,
so that `config.json` says everything; `layer_plan()` turns the config into one record per layer.
"""

from typing import ClassVar

from .config_checks import check_activation, check_choice, check_per_layer, check_types
from .config_rules import check_rules
from .family_config import FamilyConfig
from .layer_plan import resolve_layer_plan, rope_key_of
from .parallel_plans import EXPERT_PARALLEL, PIPELINE_PARALLEL, tensor_parallel_plan
from .rope_parameters import check_rope_parameters, standard_rope_parameters
from .vocabulary import RELATIVE

_AUTO_MAP = {
    "AutoConfig": "configuration_variants.VariantsConfig",
    "AutoModel": "modeling_variants.VariantsModel",
    "AutoModelForCausalLM": "modeling_variants.VariantsForCausalLM",
    "AutoModelForMaskedLM": "modeling_variants.VariantsForMaskedLM",
    "AutoModelForSequenceClassification": "modeling_variants.VariantsForSequenceClassification",
    "AutoModelForTokenClassification": "modeling_variants.VariantsForTokenClassification",
    "AutoModelForQuestionAnswering": "modeling_variants.VariantsForQuestionAnswering",
}


class VariantsConfig(FamilyConfig):
    r"""Config of a decoder (or, with `is_causal=False`, an encoder) of the family.

    Every field is a keyword; the choices of the string fields stand in `vocabulary.CHOICES` with their sources.

    Args:
        vocab_size, hidden_size, num_hidden_layers, num_attention_heads: shape, as in Llama.
        intermediate_size: width of the dense feed-forward; None gives 8/3 of hidden_size for a gated and 4 times hidden_size
            for a plain network, rounded up to a multiple of 8 (equal parameters; Shazeer 2020, §2).
        num_key_value_heads: None gives one per query head.
        head_dim: width of a head, free of hidden_size / num_attention_heads; None gives that quotient.
        attention_bias: biases of q, k, v (of q_a and kv_a under MLA) and, unless `attention_out_bias` says otherwise, of o.
        mlp_bias: biases of dense and shared feed-forwards; `mlp_out_bias` says another thing of the last projection,
            and is None where it does not.
        layer_types: attention kind of each layer; None gives sliding everywhere where `sliding_window` is set, chunked
            everywhere where `attention_chunk_size` is set, else full.
        sliding_window: visible tokens of a sliding layer, the query included. When `is_causal=False` the window is
            centred: sliding_window // 2 tokens on either side.
        query_pre_attn_scalar / attention_multiplier: scores are scaled by the first to the power -1/2, or by the second.
        clip_qkv: queries, keys and values are clamped to [-clip_qkv, clip_qkv] as projected; queries and keys after a
            `qk_norm="full"` (OLMoE), before any norm of heads (OLMo, DBRX).
        attn_output_gate: the heads are gated by a projection of the layer's input, `gate_proj`, before `o_proj`.
        attn_temperature_tuning: queries of `attn_temperature_layers` are multiplied by
            1 + attn_scale * log(1 + floor((position + attn_temperature_offset) / floor_scale)), the position counted within
            the document (Nakanishi 2025, arXiv:2501.19399, as in Llama 4 and Ministral 3).
        sinusoid_dtype: dtype of the angles of sinusoidal positions. In float32 an angle is off by up to the position times
            6e-8; float64 has no such error, and needs a device that knows it (Apple's MPS does not).
        alibi_scaled_bf16: ALiBi as Falcon-RW has it: slopes, positions and their products rounded to bfloat16, and multiplied
            by the scale of the scores.
        relative_attention_num_buckets, relative_attention_max_distance: of `position_embedding_type` "relative" and
            "learned_relative": rows of the table, and the distance from which all share the last; None gives 32 and 128.
        relative_attention_per_layer: whether every layer has such a table of its own (UMT5), and not all one (T5).
        q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim: MLA ranks and widths. Under MLA, None
            gives 4, 1, 1/2 and 1 times head_dim for the last four (DeepSeek-V2 §2.1.2-3); q_lora_rank None means that queries
            are not compressed.
        add_cross_attention: every layer also attends to the states of another stack, as the decoder of an encoder-decoder does
            (Vaswani et al. 2017, arXiv:1706.03762 §3.2.3). cross_attention_hidden_size: width of those states; None gives
            hidden_size.
        rope_parameters: {rope_type, rope_theta, ...}, or one such dict (or None for no rotation) per layer type.
        no_rope_layers: one switch per layer, 1 where RoPE is used and 0 where not (transformers' convention).
        mlp_layer_types: "dense" or "sparse" per layer; None gives sparse everywhere where `num_experts` is set.
        num_shared_experts: always-on experts, built as one network of `shared_expert_intermediate_size` (None gives their
            number times moe_intermediate_size); `shared_expert_gate` scales it by a sigmoid (Qwen2-MoE).
        router_weight_in_fp32, sinks_in_fp32: a model of half precision holds, loads and saves these in fp32 (ERNIE 4.5,
            Hunyuan, Flint); what is computed from them is fp32 in any case.
        apply_router_weight_on_input: router weights multiply what enters an expert, not what leaves it (Llama 4).
        expert_output_norm: a norm on the sum of routed and shared experts (A.X-K1).
        sparsemixer_jitter_eps: rivals further than twice this from the best logit, relative to the larger of the two, are out
            of a round of `sparsemixer`.
        norm_topk_prob: whether the weights of the chosen experts are divided by their sum; None gives True, but False for
            `router_scoring="sparsemixer"`. With one expert per token, True makes every weight 1 and leaves the router no
            gradient of the labels (Switch, arXiv:2101.03961 §2.1, weighs by the score): training warns of it, once.
        router_aux_loss_coef: None gives 0.001 under `router_balance="aux_loss"`, else 0.
        norm_unit_offset: the weight is stored minus one (Gemma); norm_weight_in_fp32: it multiplies before the cast back, as
            under rmsnorm a weight of norm_unit_offset always does.
        norm_bias: None gives True for layernorm. norm_affine: False gives norms without parameters (OLMo).
        final_norm: None gives False for `norm_placement="post_ln"`, else True.
        freeze_pad_embedding: the input row of `pad_token_id` starts at zero and gets no gradient, as in Llama; not so by
            default, for where the pad is also the end of text its row would never be trained.
        logits_scaling: logits are divided by it (Granite). residual_multiplier: branch outputs are multiplied by it.
        type_vocab_size: rows of the table of token types; 0 for none (BERT).
        embedding_size: width of the tables before the first layer; where it is not hidden_size, a projection follows, placed
            as `embedding_projection` says.
        first_attention_norm: False leaves the norm before the first attention out (ModernBERT).
        pooler: whether `VariantsModel` has BERT's pooler, tanh of a dense layer on the first real token.
        lm_head_act: activation of a dense layer with a norm before the language-model head (BERT); None for no such layer.
            lm_head_transform_bias: whether that layer has a bias.
        classifier_act: activation inside `task_head` "dense" and "dropped_dense".
        classifier_pooling: None gives "last" for a causal stack, else "first".
        classifier_dropout, token_classifier_dropout: before the classifiers of rows and of tokens. None gives
            hidden_dropout (for tokens: classifier_dropout where that is set), and none before a "linear" classifier of rows.
        qa_dropout: before the head that answers questions.
        activation_dropout: inside dense feed-forwards, behind the activation. final_dropout: behind the last norm (T5).
        attention_output_dropout: of what attention adds to the residual; None gives hidden_dropout (DistilBERT has none).

    Raises:
        ValueError: naming field, value, reason and choices, for an unknown key, a wrong type, an unknown choice, or a pair
            of choices that `config_rules.RULES` refuses.
    """

    model_type = "variants"
    keys_to_ignore_at_inference: ClassVar[list] = ["past_key_values", "router_logits", "aux_loss", "z_loss"]
    base_model_ep_plan: ClassVar[dict] = EXPERT_PARALLEL
    base_model_pp_plan: ClassVar[dict] = PIPELINE_PARALLEL

    # shape
    vocab_size: int = 32000
    hidden_size: int = 512
    intermediate_size: int | None = None
    num_hidden_layers: int = 8
    num_attention_heads: int = 8
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02
    hidden_act: str = "silu"
    attention_bias: bool = False
    attention_out_bias: bool | None = None
    mlp_bias: bool = False
    mlp_out_bias: bool | None = None
    lm_head_bias: bool = False
    # attention
    attention_type: str = "gqa"
    layer_types: list | None = None
    sliding_window: int | None = None
    attention_chunk_size: int | None = None
    attn_logit_softcapping: float | None = None
    attention_sinks: bool = False
    sinks_in_fp32: bool = False
    qk_norm: str = "none"
    qk_norm_after_rope: bool = False
    qk_norm_layers: str = "all"
    attn_output_gate: str = "none"
    attn_temperature_tuning: bool = False
    attn_temperature_layers: str = "all"
    attn_temperature_offset: int = 0
    attn_scale: float = 0.1
    floor_scale: int = 8192
    clip_qkv: float | None = None
    query_pre_attn_scalar: float | None = None
    attention_multiplier: float | None = None
    scale_attn_by_inverse_layer_idx: bool = False
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_nope_head_dim: int | None = None
    qk_rope_head_dim: int | None = None
    v_head_dim: int | None = None
    is_causal: bool = True
    add_cross_attention: bool = False
    cross_attention_hidden_size: int | None = None
    # positions
    position_embedding_type: str = "rope"
    rope_parameters: dict | None = None
    rope_interleaved: bool = False
    partial_rotary_factor: float = 1.0
    no_rope_layers: list | None = None
    position_embedding_offset: int = 0
    sinusoid_dtype: str = "float32"
    alibi_scaled_bf16: bool = False
    relative_attention_num_buckets: int | None = None
    relative_attention_max_distance: int | None = None
    relative_attention_per_layer: bool = False
    position_source: str = "attention_mask"
    # feed-forward and experts
    mlp_type: str = "gated"
    swiglu_limit: float | None = None
    swiglu_alpha: float | None = None
    num_experts: int = 0
    num_experts_per_tok: int | None = None
    moe_intermediate_size: int | None = None
    num_shared_experts: int = 0
    shared_expert_intermediate_size: int | None = None
    shared_expert_gate: bool = False
    mlp_layer_types: list | None = None
    router_scoring: str = "softmax"
    sparsemixer_jitter_eps: float = 0.01
    router_selection: str = "scores"
    apply_router_weight_on_input: bool = False
    expert_output_norm: bool = False
    norm_topk_prob: bool | None = None
    routed_scaling_factor: float = 1.0
    n_group: int = 1
    topk_group: int = 1
    router_bias: bool = False
    router_weight_in_fp32: bool = False
    expert_bias: bool = False
    router_balance: str = "none"
    router_aux_loss_coef: float | None = None
    router_z_loss_coef: float = 0.0
    router_bias_update_rate: float = 0.001
    # norms, residuals, embeddings, logits
    norm_type: str = "rmsnorm"
    norm_eps: float = 1e-6
    latent_norm_eps: float = 1e-6
    norm_unit_offset: bool = False
    norm_weight_in_fp32: bool = False
    norm_bias: bool | None = None
    norm_affine: bool = True
    norm_placement: str = "pre"
    final_norm: bool | None = None
    embedding_norm: bool = False
    embedding_multiplier: float = 1.0
    embedding_multiplier_scope: str = "inputs_embeds"
    residual_multiplier: float = 1.0
    final_logit_softcapping: float | None = None
    logits_scaling: float = 1.0
    # encoders and heads
    type_vocab_size: int = 0
    embedding_size: int | None = None
    embedding_projection: str = "sum"
    first_attention_norm: bool = True
    pooler: bool = False
    lm_head_act: str | None = None
    lm_head_transform_bias: bool = True
    task_head: str = "linear"
    classifier_act: str | None = None
    classifier_pooling: str | None = None
    # regularisation, tokens, outputs
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    attention_output_dropout: float | None = None
    embedding_dropout: float = 0.0
    activation_dropout: float = 0.0
    final_dropout: float = 0.0
    classifier_dropout: float | None = None
    token_classifier_dropout: float | None = None
    qa_dropout: float = 0.0
    pad_token_id: int | None = None
    freeze_pad_embedding: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list | None = None
    use_cache: bool = True
    output_router_logits: bool = False
    # what a native family stores that no toggle of this family means; written back by `convert.to_native`
    native: dict | None = None

    def __post_init__(self, **kwargs):
        legacy = {key: kwargs.pop(key) for key in ("rope_theta", "rope_scaling") if key in kwargs}
        self.refuse_unknown(kwargs, "rope_theta", "rope_scaling")
        check_types(self, VariantsConfig.__annotations__)
        self._resolve(**legacy)
        super().__post_init__(**kwargs)
        self.auto_map = {**_AUTO_MAP, **(getattr(self, "auto_map", None) or {})}
        self.check()

    def check(self):
        """Refuse what the family cannot mean. Raises ValueError; called when the config and when a model is made."""
        check_types(self, VariantsConfig.__annotations__)
        self._resolve()  # a field may have been set on a config that is there already
        self.refuse_misspelt()
        for name in ("attention_type", "qk_norm", "position_embedding_type", "mlp_type", "router_scoring"):
            check_choice(name, getattr(self, name))
        for name in ("router_balance", "norm_type", "norm_placement", "embedding_multiplier_scope", "embedding_projection"):
            check_choice(name, getattr(self, name))
        for name in ("qk_norm_layers", "attn_output_gate", "attn_temperature_layers", "router_selection"):
            check_choice(name, getattr(self, name))
        for name in ("position_source", "sinusoid_dtype", "task_head", "classifier_pooling"):
            check_choice(name, getattr(self, name))
        for name in ("layer_types", "mlp_layer_types"):
            check_per_layer(self, name)
        for name in ("hidden_act", "lm_head_act", "classifier_act"):
            check_activation(name, getattr(self, name))
        check_rope_parameters(self)
        check_rules(self)

    # ---- what is derived ----
    @property
    def stacks(self):
        """The configs of the stacks that a model of this config has: itself."""
        return (self,)

    @property
    def has_experts(self):
        return bool(self.num_experts)

    @property
    def query_head_dim(self):
        """Width of one query and key head as compared (nope and rope parts together under MLA)."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim if self.attention_type == "mla" else self.head_dim

    @property
    def value_head_dim(self):
        return self.v_head_dim if self.attention_type == "mla" else self.head_dim

    @property
    def rotary_head_dim(self):
        """Width of the part of a head that RoPE may turn, before `partial_rotary_factor`."""
        return self.qk_rope_head_dim if self.attention_type == "mla" else self.head_dim

    @property
    def table_width(self):
        """Width in which positions and token types are added, and normed, before the first layer."""
        return self.embedding_size if self.embedding_projection == "sum" else self.hidden_size

    @property
    def lm_head_width(self):
        """Width of what the language-model head reads."""
        narrow = self.lm_head_act is not None or self.embedding_projection == "tokens"
        return self.embedding_size if narrow else self.hidden_size

    @property
    def qk_head_dim(self):
        """Under MLA the width of a key as compared; transformers reads it to leave MLA caches to be shaped lazily."""
        return self.query_head_dim if self.attention_type == "mla" else None

    @property
    def rope_is_nested(self):
        """Whether `rope_parameters` holds one dict per layer type."""
        return self.rope_parameters is not None and "rope_type" not in self.rope_parameters

    @property
    def rope_keys(self):
        """Keys of the rotary embeddings in use, in order of first use."""
        if self.position_embedding_type == "rope" and not self.rope_is_nested:
            return ("default",) if any(self.no_rope_layers) else ()
        keys = (rope_key_of(self, index) for index in range(self.num_hidden_layers))
        return tuple(dict.fromkeys(key for key in keys if key is not None))

    def rope_of(self, key):
        """The flat RoPE dict behind a key of `rope_keys`."""
        return self.rope_parameters[key] if self.rope_is_nested else self.rope_parameters

    def rotary_dim_of(self, key):
        """Number of leading dimensions of a head that the rotary embedding `key` turns."""
        return int(self.rotary_head_dim * self.rope_of(key).get("partial_rotary_factor", self.partial_rotary_factor))

    @property
    def base_model_tp_plan(self):
        """What tensor parallelism splits; see `parallel_plans`."""
        return tensor_parallel_plan(self)

    def layer_plan(self):
        """One `LayerPlan` per layer."""
        return resolve_layer_plan(self)

    # ---- resolution of what was left None ----
    def _resolve(self, **legacy_rope):
        """Fill in what follows from other fields; what is there already stays."""
        self._resolve_shape()
        self._resolve_layers()
        self._resolve_experts()
        self._resolve_norms()
        standard_rope_parameters(self, **legacy_rope)

    def _resolve_shape(self):
        if self.attention_type in ("mha", "mqa"):
            heads = self.num_attention_heads if self.attention_type == "mha" else 1
            if self.num_key_value_heads not in (None, heads):
                raise ValueError(
                    f"attention_type={self.attention_type!r} means num_key_value_heads={heads}, but "
                    f"num_key_value_heads={self.num_key_value_heads} was given; leave it unset or use attention_type='gqa'"
                )
            self.num_key_value_heads, self.attention_type = heads, "gqa"
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None:
            for name in ("hidden_size", "num_attention_heads"):
                if getattr(self, name) <= 0:
                    raise ValueError(f"{name}={getattr(self, name)} must be greater than zero")
            if self.hidden_size % self.num_attention_heads:
                raise ValueError(
                    f"hidden_size={self.hidden_size} is not a multiple of num_attention_heads={self.num_attention_heads}, so "
                    "head_dim has no default; set head_dim"
                )
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.intermediate_size is None:
            width = self.hidden_size * 8 / 3 if self.mlp_type == "gated" else self.hidden_size * 4
            self.intermediate_size = -(-int(width) // 8) * 8
        if self.embedding_size is None:
            self.embedding_size = self.hidden_size
        if self.position_embedding_type in RELATIVE:
            for name, value in (("relative_attention_num_buckets", 32), ("relative_attention_max_distance", 128)):
                setattr(self, name, value if getattr(self, name) is None else getattr(self, name))
        if self.add_cross_attention and self.cross_attention_hidden_size is None:
            self.cross_attention_hidden_size = self.hidden_size
        if self.classifier_pooling is None:
            self.classifier_pooling = "last" if self.is_causal else "first"
        if self.attention_type == "mla":
            d = self.head_dim
            ratios = {
                "kv_lora_rank": 4 * d,
                "qk_nope_head_dim": d,
                "qk_rope_head_dim": max(d // 4 * 2, 2),
                "v_head_dim": d,
            }
            for name, value in ratios.items():
                setattr(self, name, value if getattr(self, name) is None else getattr(self, name))
        if self.attention_out_bias is None:
            self.attention_out_bias = self.attention_bias
        if self.mlp_out_bias == self.mlp_bias:
            self.mlp_out_bias = None  # so that it follows where mlp_bias is replaced later

    def _resolve_layers(self):
        if self.layer_types is None:
            if self.sliding_window is not None and self.attention_chunk_size is not None:
                raise ValueError(
                    f"sliding_window={self.sliding_window} and attention_chunk_size={self.attention_chunk_size} are both set; "
                    "give layer_types to say which layer is 'sliding_attention' and which 'chunked_attention'"
                )
            kind = "sliding_attention" if self.sliding_window is not None else "full_attention"
            kind = "chunked_attention" if self.attention_chunk_size is not None else kind
            self.layer_types = [kind] * self.num_hidden_layers
        if self.no_rope_layers is None:
            self.no_rope_layers = [1] * self.num_hidden_layers
        if self.mlp_layer_types is None:
            self.mlp_layer_types = ["sparse" if self.num_experts else "dense"] * self.num_hidden_layers

    def _resolve_experts(self):
        if self.router_aux_loss_coef is None:
            self.router_aux_loss_coef = 0.001 if self.router_balance == "aux_loss" else 0.0
        if not self.num_experts:
            return
        if self.num_experts_per_tok is None:
            self.num_experts_per_tok = min(2, self.num_experts)
        if self.moe_intermediate_size is None:
            self.moe_intermediate_size = self.intermediate_size
        if self.norm_topk_prob is None:
            self.norm_topk_prob = self.router_scoring != "sparsemixer"
        if self.num_shared_experts and self.shared_expert_intermediate_size is None:
            self.shared_expert_intermediate_size = self.num_shared_experts * self.moe_intermediate_size

    def _resolve_norms(self):
        if self.norm_bias is None:
            self.norm_bias = self.norm_type == "layernorm" and self.norm_affine
        if self.final_norm is None:
            self.final_norm = self.norm_placement != "post_ln"


__all__ = ["VariantsConfig"]
