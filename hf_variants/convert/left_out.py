"""Decoder types of transformers that no family file can mean exactly, with the reason: what the error and the docs say."""

LEFT_OUT = {
    "bamba": "state-space layers",
    "beam": "residuals and branches scaled by depth, and queries scaled by a smooth power of the position",
    "diffllama": "the difference of two attention maps",
    "doge": "attention masks computed from the values, and a product-key mixture of experts",
    "gemma3n_text": "several residual streams and keys shared between layers",
    "gemma4_text": "embeddings per layer, keys shared between layers, and a head width per layer type",
    "gpt_neox_japanese": "a bias on the attention output in the last layer alone, added after dropout",
    "hrm_text": "stacks that are run in cycles",
    "hy_v4": "attention to selected keys, and hyper-connections",
    "jamba": "state-space layers",
    "jetmoe": "experts for queries and attention outputs (mixture of attention heads), with a bias behind their sum",
    "laguna": "a number of heads per layer and a gate on the attention output",
    "lfm2": "short-convolution layers",
    "longcat_flash": "two attentions per layer and experts that do nothing",
    "mamba": "state-space layers",
    "mimo_v2_flash": "key-value heads that differ by layer type, and scaled values",
    "nemotron_h": "state-space layers",
    "qwen3_next": "gated linear attention",
}
