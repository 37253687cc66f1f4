"""Passkey retrieval as an `evaluate` metric; `hf_variants.evaluation.passkey` does the measuring."""

import evaluate

_DESCRIPTION = """Share of the random keys, hidden at several depths of a text of a given length, that a causal model repeats
when it is asked for them at the end (Mohtashami & Jaggi 2023)."""

_CITATION = """@article{mohtashami2023landmark,
title={Landmark Attention: Random-Access Infinite Context Length for Transformers},
author={Mohtashami, Amirkeivan and Jaggi, Martin}, journal={arXiv:2305.16300}, year={2023}}"""

_INPUTS = """
Args:
    predictions (list of int): lengths of the texts, in tokens.
    model_id (str): checkpoint directory or Hub id; or give `model` and `tokenizer`.
    model, tokenizer: objects to use instead of `model_id`.
    depths, trials, digits, filler, seed: as in hf_variants.evaluation.passkey.passkey_retrieval.
Returns:
    accuracy and key_loss (nats per token of the key) over all lengths, and `lengths`, a list with the same per length.
"""


class Passkey(evaluate.Metric):
    def _info(self):
        from hf_variants.metrics import metric_info

        return metric_info(_DESCRIPTION, _CITATION, _INPUTS, "int64")

    def _compute(self, predictions, model_id=None, model=None, tokenizer=None, **options):
        from hf_variants.evaluation.passkey import passkey_retrieval, summary
        from hf_variants.metrics import opened

        model, tokenizer = opened("passkey", model_id, model, tokenizer)
        rows = passkey_retrieval(model, tokenizer, [int(length) for length in predictions], **options)
        return {**summary(rows), "lengths": rows}
