"""Types of transformers that do not convert: those that no family file can mean exactly, with the reason that the error and
the docs say, and those for which none has been written.

Notable here: a test walks transformers' own tables and finds each type among the families, or here.
"""

LEFT_OUT = {
    "axk2": "attention to selected keys, and gated norms",
    "bailing_hybrid": "linear attention (delta rule)",
    "albert": "layers that share their weights",
    "convbert": "convolutions beside attention",
    "deberta": "scores between contents and relative positions, in both directions",
    "deberta-v2": "scores between contents and relative positions, in both directions",
    "mobilebert": "bottlenecks around every layer",
    "squeezebert": "grouped convolutions in place of projections",
    "bamba": "state-space layers",
    "beam": "residuals and branches scaled by depth, and queries scaled by a smooth power of the position",
    "bitnet": "norms inside attention and feed-forward, and weights of three values",
    "blt": "bytes grouped into patches by models of their own",
    "cpmant": "relative positions between segments, added to the scores",
    "deepseek_v32": "attention to selected keys",
    "deepseek_v4": "attention to compressed and selected keys, and hyper-connections",
    "diffllama": "the difference of two attention maps",
    "doge": "attention masks computed from the values, and a product-key mixture of experts",
    "dots3_note_text": "attention to selected keys",
    "falcon_h1": "state-space layers",
    "falcon_mamba": "state-space layers",
    "gemma3n_text": "several residual streams and keys shared between layers",
    "gemma4_text": "embeddings per layer, keys shared between layers, and a head width per layer type",
    "glm_moe_dsa": "attention to selected keys",
    "gpt_neox_japanese": "a bias on the attention output in the last layer alone, added after dropout",
    "hrm_text": "stacks that are run in cycles",
    "hy_v4": "attention to selected keys, and hyper-connections",
    "inkling_text": "short convolutions, and logits of relative positions",
    "jamba": "state-space layers",
    "jetmoe": "experts for queries and attention outputs (mixture of attention heads), with a bias behind their sum",
    "kimi_linear": "linear attention (delta rule)",
    "laguna": "a number of heads per layer, and a softplus gate on the attention output",
    "lfm2": "short-convolution layers",
    "lfm2_moe": "short-convolution layers",
    "lfm3": "short-convolution layers",
    "longcat_flash": "two attentions per layer and experts that do nothing",
    "mamba": "state-space layers",
    "mamba2": "state-space layers",
    "mimo_v2_flash": "key-value heads that differ by layer type, sinks on sliding layers alone, and scaled values",
    "minimax": "linear (lightning) attention",
    "minimax_m3_vl_text": "attention to selected keys",
    "nemotron_h": "state-space layers",
    "olmo_hybrid": "linear attention (delta rule)",
    "qwen3_5_moe_text": "linear attention (delta rule)",
    "qwen3_5_text": "linear attention (delta rule)",
    "qwen3_next": "linear attention (delta rule)",
    "qwen4_exp_text": "linear attention, hyper-connections, and attention to selected keys",
    "recurrent_gemma": "recurrent layers",
    "reformer": "hashed attention in reversible layers",
    "rwkv": "recurrent layers",
    "xlnet": "two streams of attention over permuted tokens",
    "xlstm": "recurrent layers",
    "zamba": "state-space layers",
    "zamba2": "state-space layers",
    "zaya": "keys and values compressed by convolutions, and routers of several layers",
    # encoder-decoders, and what transformers lists among them
    "encoder-decoder": "two models of any types in one, each with names and keys of its own",
    "bigbird_pegasus": "an encoder that attends to random, neighbouring and global blocks",
    "led": "projections of their own for tokens that see, and are seen by, the whole text",
    "pegasus_x": "an encoder with global tokens of their own, and blocks that every other layer shifts",
    "prophetnet": "streams that predict several tokens ahead, and relative biases computed from the states",
    "blenderbot-small": "a norm on the decoder's tokens before positions are added",
    "fsmt": "decoder inputs made of the source where labels stand alone, and positions of the decoder counted by ids",
    "nllb-moe": "experts of limited capacity: what a token is given depends on the other tokens of the batch",
    "switch_transformers": "experts of limited capacity: tokens beyond it pass by them",
    "t5gemma2": "one attention of the decoder to its own tokens and the encoder's, under one softmax, and images",
    "seamless_m4t": "a conformer for speech and a generator of speech in the same checkpoint",
    "seamless_m4t_v2": "a conformer for speech and a generator of speech in the same checkpoint",
    "audioflamingo3": "an encoder of sound before the language model",
    "glmasr": "an encoder of sound before the language model",
    "granite_speech": "an encoder of sound before the language model",
    "granite_speech_plus": "an encoder of sound before the language model",
    "moss_transcribe_diarize": "an encoder of sound before the language model",
    "musicflamingo": "an encoder of sound before the language model",
    "nemo_speechlm": "an encoder of sound before the language model",
    "qwen2_audio": "an encoder of sound before the language model",
    "qwen3_asr": "an encoder of sound before the language model",
    "vibevoice_asr": "an encoder of sound before the language model",
    "voxtral": "an encoder of sound before the language model",
    "voxtral_realtime": "an encoder of sound before the language model",
    "big_bird": "attention to blocks of which some are drawn at random",
    "fnet": "Fourier transforms in place of attention",
    "funnel": "sequences that are pooled between layers",
    "longformer": "windows beside tokens that see and are seen by all, with projections of their own",
    "mra": "attention approximated at several resolutions",
    "nystromformer": "attention approximated from landmarks",
    "yoso": "attention approximated by hashing",
    "perceiver": "latents of their own that attend to the inputs",
    "ibert": "arithmetic in integers",
    "luke": "entities beside words",
    "tapas": "places in a table, by seven kinds of token types",
    "layoutlm": "places on a page",
    "roc_bert": "shapes and sounds of characters",
    "xmod": "adapters per language",
    "moshi": "several streams of sound, and a model over their depth",
    "musicgen": "several codebooks of sound per step",
    "musicgen_melody": "several codebooks of sound per step",
    "whisper": "sound",
    "trocr": "a decoder alone that attends to the states of an image model",
    "qwen3_5": "linear attention (delta rule)",
    "qwen3_5_moe": "linear attention (delta rule)",
    "qwen4_exp": "linear attention, hyper-connections, and attention to selected keys",
    "gemma3n": "several residual streams and keys shared between layers",
    "gemma4": "embeddings per layer, keys shared between layers, and a head width per layer type",
    "inkling2_text": "logits of relative positions",
}

# Types of transformers for which no family file has been written; nothing says that none could be.
UNWRITTEN = tuple(
    """
    aria  bert-generation blip chameleon  cohere_compass cohere_compass_text cosmos3_edge
    cosmos3_omni deepseek_ocr2  deepseek_vl_hybrid diffusion_gemma dots3_note emu3 ernie4_5_vl_moe esm esmc
    evolla exaone4_5 fast_vlm flaubert florence2 fuyu gemma4_assistant gemma4_unified gemma4_unified_assistant
    gemma4_unified_text git glm46v glm4v glm4v_moe glm5_next glm_ocr glmga got_ocr2 gpt-sw3 granite4_vision
    granite_docling gte hunyuan_vl hyperclovax_vision_v2 inkling2 inkling_mm_model instructblip instructblipvideo
     janus jina_embeddings_v3 kimi_k25 kosmos-2 kosmos-2.5 lfm2_vl lfm3_vl lighton_ocr llama4 llava_next_video
    llava_onevision minicpm_ocr minicpmv4_6 minicpmv4_7 minimax_m3_vl mistral3 mistral4 mistral_large4 modernvbert
    molmo2 muse_glimmer muse_spark nemotron_h_omni neomme ovis2 paddleocr_vl perception_lm phi4_multimodal pi0
    pix2struct pp_chart2table pp_formulanet qianfan_ocr qwen2_5_omni_thinker qwen3_omni_moe_thinker qwen3_vl
    qwen3_vl_moe rembert roformer shieldgemma2 step3p7 udop ultrabert ultravbert unlimited_ocr video_llama_3 video_llava
     vision-encoder-decoder xlm
    """.split()
)
