"""The words of the vision-language member: what each of its string fields can be, in one line with its source.

Notable here: as `vocabulary.py`, plain data that the config checks against and that error texts and docs quote.
"""

VISION_CHOICES = {
    "bridge": {
        "projection": "Projected image features stand in the row of tokens (LLaVA 2023, arXiv:2304.08485 §4.1).",
        "gated_cross_attention": "Text layers attend to images behind tanh gates (Flamingo 2022, arXiv:2204.14198 §2.2).",
    },
    "projector": {
        "affine": "v = W f + b (LLaVA 2023, arXiv:2304.08485 §4.1).",
        "mlp": "v = W2 act(W1 f + b1) + b2 (LLaVA 1.5, arXiv:2310.03744 §3.2).",
        "gated": "v = W2 (a * act(g)) + b2 with [a, g] = W1 f + b1 (Aya Vision 2025, arXiv:2505.08751).",
    },
    "projector_norm": {
        "none": "Features enter the projector as they are.",
        "layernorm": "LayerNorm of the features, behind compression (ViP-LLaVA 2023, arXiv:2312.00784; InternVL).",
        "rmsnorm": "RMSNorm, its weight stored as the language model stores its own (Gemma 3, arXiv:2503.19786).",
    },
    "token_compression": {
        "none": "One token per patch.",
        "pool": "The mean of each `compression_factor` x `compression_factor` square of patches.",
        "pixel_shuffle": "Each such square as one token of factor^2 times the width (Idefics3, arXiv:2408.12637 §2.2).",
        "resampler": "`num_resampler_tokens` learned queries read the patches (Flamingo, arXiv:2204.14198 §2.1).",
    },
    "image_attention": {
        "causal": "Image tokens see what comes before them, as text does (LLaVA).",
        "bidirectional": "The tokens of one image see each other, within a layer's window (Gemma 3, arXiv:2503.19786).",
        "prefix": "All tokens of type 0 see each other, sliding layers included (PaliGemma 2024, arXiv:2407.07726 §3.1).",
    },
    "vision_feature_select_strategy": {
        "default": "The patches alone; a class token is left out.",
        "full": "Every token of the tower, its class token included.",
    },
    "cross_attention_scope": {
        "last": "A text token sees the image before it (Flamingo, arXiv:2204.14198 §2.3).",
        "all": "A text token sees every image before it.",
    },
}
