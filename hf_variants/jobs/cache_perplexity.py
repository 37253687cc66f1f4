"""What `hf-variants profile-cache --text` does: a checkpoint reads a text through a kind of cache, and through a plain one."""


def measure_perplexity(profile, source, text):
    """Fill `perplexity` and `perplexity_of_dynamic` of a `CacheProfile` from a checkpoint and a text file; returns it.

    Raises:
        ValueError: for a text of fewer than `profile.length` tokens, or as loading the checkpoint.
    """
    import torch

    from ..evaluation.cache_perplexity import cache_perplexity
    from ..evaluation.cache_profile import NEW_CACHES
    from ..evaluation.long_text import text_ids
    from ..quantize.checkpoint import load_one_stack
    from ..training.tokenizer import load_tokenizer

    ids = text_ids(text, load_tokenizer(source), profile.length)
    model = load_one_stack(source).to(getattr(torch, profile.dtype)).eval()
    empty = NEW_CACHES[profile.cache](model.config, profile, profile.length)
    profile.perplexity = cache_perplexity(model, ids, empty)
    profile.perplexity_of_dynamic = cache_perplexity(model, ids, None) if profile.cache != "dynamic" else profile.perplexity
    return profile
