"""Native vision-language families whose bridges are ours: where their parts stand, and the weights between them.

Notable here: a family says only what stands between tower and language model; the language model goes through the family of
its own type, and the tower is the native one, as it is. `VISION_FAMILIES` is the contents.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from hf_variants.convert import vision_keys as keys
from hf_variants.convert.tensor_ops import Transpose
from hf_variants.convert.weight_rules import rearrange, rename

_OURS = "model.multi_modal_projector."
# what a language model alone does to its logits; around it most native classes have a plain matrix
HEAD_TERMS = {"logits_scaling": 1.0, "final_logit_softcapping": None}
_THEIRS = "model.multi_modal_projector."


@dataclass(frozen=True)
class VisionFamily:
    """One native family.

    Attributes:
        model_type: transformers' name of it.
        meaning: what it is, in a line.
        read: native config -> keys of `VariantsVisionConfig` beside its parts. Raises ValueError for what none means.
        write: `VariantsVisionConfig` -> native keys beside its parts.
        bridge: weight rules of what stands between tower and language model.
        text, tower: prefixes of language model and tower in a native model in memory.
        text_keys: native keys of the text config that belong to the family, to what they are where the text stands alone.
        tower_type: our type of the tower, where the native one has a type of its own.
        head_terms: those of `HEAD_TERMS` that the native class applies; it leaves the others unread.
    """

    model_type: str
    meaning: str
    read: Callable
    write: Callable
    bridge: list
    text: str = "model.language_model."
    tower: str = "model.vision_tower."
    text_keys: dict = field(default_factory=dict)
    tower_type: str | None = None
    head_terms: tuple = ()

    def unread_terms(self):
        """{key of the text config: its value without effect} of what the native class does not do to its logits."""
        return {key: off for key, off in HEAD_TERMS.items() if key not in self.head_terms}

    def is_of_a_head(self, name):
        """Whether a native tensor belongs to another head than the language model's: none does."""
        return False


_IDEFICS3 = {
    "read": keys.read_idefics3,
    "write": keys.write_idefics3,
    "bridge": [rename("model.connector.modality_projection.proj.weight", f"{_OURS}projector.linear.weight")],
    "text": "model.text_model.",
    "tower": "model.vision_model.",
    "tower_type": "siglip_vision_model",
}
_LAYERS = [rename(f"{_THEIRS}{layer}.*", f"{_OURS}projector.{layer}.*") for layer in ("linear_1", "linear_2")]


def _normed(name):
    return [rename(f"{_THEIRS}{name}.*", f"{_OURS}norm.*"), *_LAYERS]


VISION_FAMILIES = {
    family.model_type: family
    for family in (
        VisionFamily(
            "llava",
            "Patches of any tower through a two-layer network among the tokens of any causal model.",
            keys.read_llava,
            keys.write_llava,
            _LAYERS,
        ),
        VisionFamily("idefics3", "Patches shuffled into channels and projected, causal among Llama's tokens.", **_IDEFICS3),
        VisionFamily("smolvlm", "Idefics3 with another processor.", **_IDEFICS3),
        VisionFamily(
            "paligemma",
            "Patches of SigLIP projected among Gemma's or Gemma 2's tokens; the prompt sees itself.",
            keys.read_paligemma,
            keys.write_paligemma,
            [rename(f"{_THEIRS}linear.*", f"{_OURS}projector.linear.*")],
            text_keys={"use_bidirectional_attention": None, "num_image_tokens": None},
            head_terms=("final_logit_softcapping",),
        ),
        VisionFamily(
            "gemma3",
            "Patches of SigLIP pooled, normed and projected among Gemma 3's tokens; the tokens of an image see each other.",
            keys.read_gemma3,
            keys.write_gemma3,
            [
                rename(f"{_THEIRS}mm_soft_emb_norm.*", f"{_OURS}norm.*"),
                rearrange(f"{_THEIRS}mm_input_projection_weight", f"{_OURS}projector.linear.weight", Transpose()),
            ],
        ),
        VisionFamily(
            "internvl",
            "Patches of InternViT shuffled, normed and through two layers among the tokens of any causal model.",
            keys.read_internvl,
            keys.write_internvl,
            _normed("layer_norm"),
        ),
        VisionFamily(
            "qianfan_ocr",
            "InternVL whose tower leaves whole layers out in training, among the tokens of any causal model.",
            keys.read_internvl,
            keys.write_internvl,
            _normed("layer_norm"),
        ),
        VisionFamily(
            "vipllava",
            "LLaVA over several layers of the tower side by side, with a norm before the two layers.",
            keys.read_vipllava,
            keys.write_vipllava,
            _normed("projector_layernorm"),
        ),
        VisionFamily(
            "aya_vision",
            "Patches shuffled, normed and through a gated network among Cohere 2's tokens.",
            keys.read_aya_vision,
            keys.write_aya_vision,
            _normed("layernorm"),
        ),
        VisionFamily(
            "cohere2_vision",
            "Aya Vision without the norm (Command A Vision).",
            keys.read_cohere2_vision,
            keys.write_cohere2_vision,
            _LAYERS,
        ),
        VisionFamily(
            "deepseek_vl",
            "Patches of SigLIP through two layers among Llama's tokens.",
            keys.read_deepseek_vl,
            keys.write_deepseek_vl,
            [rename(f"model.aligner.linear{part}.*", f"{_OURS}projector.linear_{part}.*") for part in (1, 2)],
            tower="model.vision_model.",
        ),
    )
}

# Types of transformers that no bridge of ours means exactly, with the reason.
VISION_LEFT_OUT = {
    "mllama": "layers that attend to images in place of tokens, and a tower of tiles with gates of its own",
    "llava_next": "images cut into tiles with a learned vector at the end of each row",
    "idefics2": "a resampler whose keys are normed and grouped unlike ours",
    "idefics": "gated cross-attention with a mask per image and norms of its own",
    "qwen2_vl": "positions in three directions (time, row, column)",
    "qwen2_5_vl": "positions in three directions (time, row, column)",
    "blip-2": "a querying transformer between tower and text",
    "pixtral": "a tower with positions in two directions",
    "aria": "a projector whose queries attend to the patches, as many as the patches ask for",
    "blip": "a language model of BERT's layers that attend to the image in each",
    "chameleon": "images turned into words of a codebook",
    "cohere_compass": "positions in three directions, and features added in several layers of the text",
    "cosmos3_edge": "positions in three directions (time, row, column)",
    "cosmos3_omni": "positions in three directions, and features added in several layers of the text",
    "deepseek_ocr2": "two towers one after the other, and images cut into tiles",
    "deepseek_vl_hybrid": "two towers side by side, one of windows and convolutions",
    "diffusion_gemma": "text generated in blocks by denoising",
    "dots3_note": "attention to selected keys, and latents multiplied by factors",
    "emu3": "images turned into words of a codebook",
    "ernie4_5_vl_moe": "positions in three directions, and experts for images beside those for text",
    "evolla": "layers that attend to proteins, their structures and alignments",
    "exaone4_5": "a tower of windows, with positions in two directions",
    "fast_vlm": "a tower of convolutions",
    "florence2": "a tower of convolutions before an encoder-decoder",
    "fuyu": "patches that enter the language model without a tower",
    "gemma4_unified": "a factor per layer, and keys shared between layers",
    "git": "images that stand before the text and are not counted by its positions",
    "glm46v": "positions in three directions (time, row, column)",
    "glm4v": "positions in three directions (time, row, column)",
    "glm4v_moe": "positions in three directions (time, row, column)",
    "glm5_next": "linear attention (delta rule), hyper-connections, and attention to selected keys",
    "glm_ocr": "positions in three directions (time, row, column)",
    "glmga": "positions in three directions (time, row, column)",
    "got_ocr2": "a tower of windows and relative positions, with convolutions behind it",
    "granite4_vision": "features added in several layers of the text, through a querying transformer per layer",
    "granite_docling": "features added in several layers of the text",
    "hunyuan_vl": "positions in several directions (text, time, row, column)",
    "hyperclovax_vision_v2": "a tower of windows, with positions in two directions",
    "inkling2": "short convolutions, logits of relative positions, and branches that attend to earlier blocks",
    "inkling_mm_model": "short convolutions, and logits of relative positions",
    "instructblip": "a querying transformer that reads the instruction between tower and text",
    "instructblipvideo": "a querying transformer that reads the instruction between tower and text",
    "janus": "a generator of images in the same checkpoint",
    "kimi_k25": "a tower with positions in two directions, over images and time",
    "kosmos-2": "queries that attend to patches and to themselves, and norms inside attention and feed-forward",
    "kosmos-2.5": "queries that attend to patches and to themselves, and patches of pictures of any shape",
    "lfm2_vl": "short-convolution layers in the text",
    "lfm3_vl": "short-convolution layers in the text",
    "lighton_ocr": "a tower with positions in two directions",
    "llama4": "a tower with positions in two directions",
    "llava_next_video": "images cut into tiles with a learned vector at the end of each row, and videos",
    "llava_onevision": "images cut into tiles, packed by their size with a learned vector at the end of each row, and videos",
    "minicpm_ocr": "a tower that merges windows between its layers",
    "minicpmv4_6": "a tower that merges windows between its layers",
    "minicpmv4_7": "a tower that merges windows between its layers",
    "minimax_m3_vl": "attention to selected blocks of keys",
    "mistral3": "a tower with positions in two directions",
    "mistral_large4": "attention to selected keys, and keys shared between layers",
    "modernvbert": "images before a bidirectional language model",
    "molmo2": "patches pooled by attention",
    "muse_glimmer": "a tower of windows, with positions in two directions",
    "muse_spark": "gates on the residuals, and a tower of windows with positions in two directions",
    "nemotron_h_omni": "state-space layers",
    "ovis2": "images as mixtures of the rows of a table",
    "paddleocr_vl": "positions in three directions (time, row, column)",
    "perception_lm": "a tower of the library timm",
    "phi4_multimodal": "a tower whose patches are pooled with learned vectors between tiles, and sound",
    "pi0": "actions of a robot, generated by denoising",
    "pix2struct": "patches of pictures of any shape before an encoder-decoder",
    "pp_chart2table": "a tower of windows and relative positions, with convolutions behind it",
    "pp_formulanet": "a tower of windows and relative positions before a decoder",
    "qwen2_5_omni_thinker": "positions in three directions, and sound",
    "qwen3_omni_moe_thinker": "positions in three directions, and sound",
    "qwen3_vl": "positions in three directions, and features added in several layers of the text",
    "qwen3_vl_moe": "positions in three directions, and features added in several layers of the text",
    "shieldgemma2": "a classifier of images that reads two words of Gemma 3's head",
    "step3p7": "a tower with positions in two directions, and convolutions behind it",
    "udop": "words with their places on a page before an encoder-decoder",
    "ultravbert": "images before a bidirectional language model",
    "unlimited_ocr": "two towers one after the other, and images cut into tiles",
    "video_llama_3": "a tower with positions in two directions, over images and time",
    "video_llava": "a tower for videos beside that for images",
    "vision-encoder-decoder": "two models of any types in one, the decoder attending to the image in every layer",
}
