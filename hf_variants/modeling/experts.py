"""Mixture of experts: a router, the routed experts and the shared ones.

Notable here: routed experts are fused tensors by default (fast, expert-parallel; on disk as in memory, so that a resumed run
finds every expert), or one `nn.Linear` each where a quantizer has to find them. The router counts its load in training, and
bias balancing moves its bias once per optimizer step, whoever runs the loop.
"""

import torch
from torch import nn
from transformers import initialization as init
from transformers.integrations import use_experts_implementation
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, ExpertsInterface
from transformers.utils.import_utils import is_tracing

from .feed_forward import FEED_FORWARDS, activation, gate_function
from .norms import build_norm
from .products import multiply
from .router_balance import record_load, watch_router
from .router_choice import GROUP_SCORES, keep_best_groups
from .sparsemixer import mix_sparsely


class VariantsTopKRouter(nn.Module):
    """Chooses `num_experts_per_tok` experts per token and their weights.

    scores = softmax or sigmoid of W x, in fp32 whatever the dtype of the model, though under autocast W x is a product in
    autocast's dtype, as in the native classes; the choice is made on scores + `e_score_correction_bias` (never part of the
    weights; Wang et al. 2024, arXiv:2408.15664) among the best `topk_group` of `n_group` groups (DeepSeek-V3, arXiv:2412.19437
    §2.1.2); the weights are the chosen scores, optionally normalised, times `routed_scaling_factor`. Under `sparsemixer` both
    come from the logits, one expert after the other.

    Args:
        config: a `VariantsConfig` with experts.
    """

    def __init__(self, config):
        super().__init__()
        self.num_experts, self.top_k = config.num_experts, config.num_experts_per_tok
        self.n_group, self.topk_group = config.n_group, config.topk_group
        self.norm_topk_prob, self.routed_scaling_factor = config.norm_topk_prob, config.routed_scaling_factor
        self.update_rate, self.std = config.router_bias_update_rate, config.initializer_range
        kept = torch.float32 if config.router_weight_in_fp32 else None
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size, dtype=kept))
        self.bias = nn.Parameter(torch.empty(config.num_experts)) if config.router_bias else None
        balanced = config.router_balance == "bias"
        self.register_buffer("e_score_correction_bias", torch.zeros(config.num_experts) if balanced else None)
        self.choose, self.score = ROUTERS[config.router_scoring]
        self.score_group = GROUP_SCORES.get(config.router_scoring)
        self.jitter_eps, self.by_logits = config.sparsemixer_jitter_eps, config.router_selection == "logits"
        self.load = self.last_load = None
        watch_router(self)

    def fill(self):
        init.normal_(self.weight, mean=0.0, std=self.std)
        if self.bias is not None:
            init.zeros_(self.bias)
        if self.e_score_correction_bias is not None:
            init.zeros_(self.e_score_correction_bias)

    def _apply(self, fn, recurse=True):
        # the selection bias moves in steps of a thousandth, which half precision would lose
        kept = self.e_score_correction_bias
        super()._apply(fn, recurse)
        moved = self.e_score_correction_bias
        if kept is not None and moved.dtype != torch.float32:
            self.e_score_correction_bias = kept.to(moved.device, torch.float32)
        return self

    def forward(self, hidden_states, token_mask=None):
        """hidden_states [tokens, hidden]; token_mask [tokens], false at pads, which are not counted.

        Returns logits [tokens, experts] in fp32 (or autocast's dtype), weights and indices [tokens, top_k].
        """
        bias = None if self.bias is None else self.bias.float()
        logits = nn.functional.linear(hidden_states.float(), self.weight.float(), bias)
        weights, indices = self.choose(self, logits)
        if self.norm_topk_prob:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        if self.training:
            record_load(self, indices, token_mask)
        return logits, weights * self.routed_scaling_factor, indices


def _choose_best_scores(router, logits):
    scores = router.score(logits)
    compared = logits if router.by_logits else scores
    choice = compared if router.e_score_correction_bias is None else compared + router.e_score_correction_bias
    choice = keep_best_groups(choice, router.n_group, router.topk_group, router.score_group)
    indices = choice.topk(router.top_k, dim=-1, sorted=False).indices
    return scores.gather(1, indices), indices


def _choose_by_sparsemixer(router, logits):
    return mix_sparsely(logits, router.top_k, router.jitter_eps, router.training)


def _softmax_scores(logits):
    return logits.softmax(dim=-1)


def _sigmoid_scores(logits):
    return logits.sigmoid()


# router_scoring -> choice of weights and indices, scores of the logits
ROUTERS = {
    "softmax": (_choose_best_scores, _softmax_scores),
    "sigmoid": (_choose_best_scores, _sigmoid_scores),
    "sparsemixer": (_choose_by_sparsemixer, None),
}


class _FusedExperts(nn.Module):
    """All routed experts as three-dimensional parameters; subclasses fix gate and bias for transformers' kernels."""

    def __init__(self, config):
        super().__init__()
        self.num_experts, self.std = config.num_experts, config.initializer_range
        experts, width, hidden = config.num_experts, config.moe_intermediate_size, config.hidden_size
        gated = config.mlp_type == "gated"
        self.entry = "gate_up_proj" if gated else "up_proj"
        rows = 2 * width if gated else width
        self.register_parameter(self.entry, nn.Parameter(torch.empty(experts, rows, hidden)))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, width))
        if config.expert_bias:
            self.register_parameter(f"{self.entry}_bias", nn.Parameter(torch.empty(experts, rows)))
            self.down_proj_bias = nn.Parameter(torch.empty(experts, hidden))
        self.act_fn = activation(config.hidden_act)
        self.combine = gate_function(config)

    def fill(self):
        for name, parameter in self.named_parameters():
            init.zeros_(parameter) if name.endswith("bias") else init.normal_(parameter, mean=0.0, std=self.std)

    def _apply_gate(self, gate_up):
        return self.combine(*gate_up.chunk(2, dim=-1))

    def _expert(self, index, states):
        entry_bias = getattr(self, f"{self.entry}_bias")[index] if self.has_bias else None
        down_bias = self.down_proj_bias[index] if self.has_bias else None
        inner = multiply(states, getattr(self, self.entry)[index], entry_bias)
        inner = self._apply_gate(inner) if self.has_gate else self.act_fn(inner)
        return multiply(inner, self.down_proj[index], down_bias)

    def serve_one(self, state, indices, weights):
        """One token [1, hidden] by its experts [top_k]: only their weights are read, each where it lies."""
        parts = [self._expert(index, state) * weight for index, weight in zip(indices.tolist(), weights, strict=True)]
        return sum(parts[1:], parts[0]).to(state.dtype)

    def forward(self, hidden_states, top_k_index, top_k_weights):
        """hidden_states [tokens, hidden]; indices and weights [tokens, top_k]. The readable form of the kernels."""
        out = torch.zeros_like(hidden_states, dtype=torch.promote_types(hidden_states.dtype, top_k_weights.dtype))
        for index in top_k_index.unique().tolist():
            if index == self.num_experts:  # the slot of tokens that another rank serves
                continue
            token, slot = torch.where(top_k_index == index)
            out.index_add_(0, token, self._expert(index, hidden_states[token]) * top_k_weights[token, slot, None])
        return out.to(hidden_states.dtype)


def grouped_experts(experts, hidden_states, top_k_index, top_k_weights):
    """transformers' `grouped_mm`, or another kernel for what it refuses: rows that do not fill whole 16 bytes, and doubles."""
    if hidden_states.shape[0] == 1 and hidden_states.device.type == "cpu" and not is_tracing(hidden_states):
        if int(top_k_index.max()) < experts.num_experts:  # else a slot that another rank serves
            return experts.serve_one(hidden_states, top_k_index[0], top_k_weights[0])
    *_, hidden, width = experts.down_proj.shape
    size = experts.down_proj.element_size()
    kernel = ALL_EXPERTS_FUNCTIONS["grouped_mm"]
    if hidden * size % 16 or width * size % 16 or size > 4:
        kernel = ALL_EXPERTS_FUNCTIONS["batched_mm"] if torch.compiler.is_compiling() else _FusedExperts.forward
    return kernel(experts, hidden_states, top_k_index, top_k_weights)


EXPERTS_FUNCTIONS = ExpertsInterface()
EXPERTS_FUNCTIONS["grouped_mm"] = grouped_experts


@use_experts_implementation(experts_interface=EXPERTS_FUNCTIONS)
class VariantsGatedExperts(_FusedExperts):
    def __init__(self, config):
        super().__init__(config)

    def forward(self, hidden_states, top_k_index, top_k_weights):
        return super().forward(hidden_states, top_k_index, top_k_weights)


@use_experts_implementation(experts_interface=EXPERTS_FUNCTIONS, has_bias=True)
class VariantsBiasedGatedExperts(_FusedExperts):
    def __init__(self, config):
        super().__init__(config)

    def forward(self, hidden_states, top_k_index, top_k_weights):
        return super().forward(hidden_states, top_k_index, top_k_weights)


@use_experts_implementation(experts_interface=EXPERTS_FUNCTIONS, has_gate=False)
class VariantsPlainExperts(_FusedExperts):
    def __init__(self, config):
        super().__init__(config)

    def forward(self, hidden_states, top_k_index, top_k_weights):
        return super().forward(hidden_states, top_k_index, top_k_weights)


@use_experts_implementation(experts_interface=EXPERTS_FUNCTIONS, has_gate=False, has_bias=True)
class VariantsBiasedPlainExperts(_FusedExperts):
    def __init__(self, config):
        super().__init__(config)

    def forward(self, hidden_states, top_k_index, top_k_weights):
        return super().forward(hidden_states, top_k_index, top_k_weights)


# (mlp_type, expert_bias) -> fused experts
FUSED_EXPERTS = {
    ("gated", False): VariantsGatedExperts,
    ("gated", True): VariantsBiasedGatedExperts,
    ("plain", False): VariantsPlainExperts,
    ("plain", True): VariantsBiasedPlainExperts,
}


class VariantsLinearExperts(nn.ModuleList):
    """One feed-forward network of `nn.Linear`s per expert: what quantizers and adapters that look for Linears can find."""

    def __init__(self, config):
        network = FEED_FORWARDS[config.mlp_type]
        experts = range(config.num_experts)
        super().__init__(network(config, config.moe_intermediate_size, bias=config.expert_bias) for _ in experts)

    def forward(self, hidden_states, top_k_index, top_k_weights):
        out = torch.zeros_like(hidden_states, dtype=torch.promote_types(hidden_states.dtype, top_k_weights.dtype))
        # in training every expert runs, on no tokens if need be, so that each parameter has a gradient on every rank
        chosen = range(len(self)) if self.training else top_k_index.unique().tolist()
        for index in chosen:
            token, slot = torch.where(top_k_index == index)
            out = out.index_add(0, token, self[index](hidden_states[token]) * top_k_weights[token, slot, None])
        return out.to(hidden_states.dtype)


def build_experts(config):
    """Fused experts, or Linears where the config says that the weights are quantized."""
    if getattr(config, "quantization_config", None) is not None:
        return VariantsLinearExperts(config)
    return FUSED_EXPERTS[(config.mlp_type, config.expert_bias)](config)


class VariantsSparseMLP(nn.Module):
    """Routed experts plus shared ones (DeepSeekMoE, arXiv:2401.06066 §3).

    Args:
        config: a `VariantsConfig` with experts.
    """

    def __init__(self, config):
        super().__init__()
        self.gate = VariantsTopKRouter(config)
        self.experts = build_experts(config)
        self.shared_experts = self.shared_expert_gate = None
        if config.num_shared_experts:
            self.shared_experts = FEED_FORWARDS[config.mlp_type](config, config.shared_expert_intermediate_size)
        if config.shared_expert_gate:
            self.shared_expert_gate = nn.Linear(config.hidden_size, 1, bias=False)
        self.output_norm = build_norm(config, config.hidden_size) if config.expert_output_norm else nn.Identity()
        self.route = WEIGHINGS[config.apply_router_weight_on_input]
        self.add_shared = SHARED_EXPERTS[(bool(config.num_shared_experts), config.shared_expert_gate)]

    def forward(self, hidden_states, token_mask=None):
        """hidden_states [B, T, hidden]; token_mask [B, T], false at pads."""
        flat = hidden_states.reshape(-1, hidden_states.shape[-1])
        _, weights, indices = self.gate(flat, None if token_mask is None else token_mask.reshape(-1))
        routed = self.route(self.experts, flat, indices, weights).view_as(hidden_states)
        return self.output_norm(self.add_shared(self, routed, hidden_states))


def weigh_outputs(experts, flat, indices, weights):
    return experts(flat, indices, weights)


def weigh_inputs(experts, flat, indices, weights):
    """Each token goes to each of its experts as a token of its own, weighted, and the outputs are added up."""
    tokens, top_k = indices.shape
    inputs = (flat.unsqueeze(1) * weights.unsqueeze(-1).to(flat.dtype)).flatten(0, 1)
    out = experts(inputs, indices.reshape(-1, 1), torch.ones_like(weights).view(-1, 1))
    return out.view(tokens, top_k, -1).sum(dim=1)


# apply_router_weight_on_input -> how the experts are called
WEIGHINGS = {False: weigh_outputs, True: weigh_inputs}


def _routed_alone(self, routed, hidden_states):
    return routed


def _routed_and_shared(self, routed, hidden_states):
    return routed + self.shared_experts(hidden_states)


def _routed_and_gated_shared(self, routed, hidden_states):
    return routed + torch.sigmoid(self.shared_expert_gate(hidden_states)) * self.shared_experts(hidden_states)


# (has shared experts, scaled by a gate) -> the sum
SHARED_EXPERTS = {
    (False, False): _routed_alone,
    (True, False): _routed_and_shared,
    (True, True): _routed_and_gated_shared,
}
