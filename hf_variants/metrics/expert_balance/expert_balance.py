"""Use of experts as an `evaluate` metric; `hf_variants.evaluation.expert_balance` does the measuring."""

import evaluate

_DESCRIPTION = """How evenly the routers of a mixture-of-experts model use its experts on given documents."""

_CITATION = """@article{wang2024auxiliary, title={Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts},
author={Wang, Lean and others}, journal={arXiv:2408.15664}, year={2024}}"""

_INPUTS = """
Args:
    predictions (list of str): documents.
    model_id (str): checkpoint directory or Hub id; or give `model` and `tokenizer`.
    model, tokenizer: objects to use instead of `model_id`.
    window, batch_size, max_tokens: as in hf_variants.evaluation.expert_balance.expert_balance.
Returns:
    max_violation, entropy, unused and tokens over all layers, and `layers`, a list with the same and `load` per layer.
"""


class ExpertBalance(evaluate.Metric):
    def _info(self):
        from hf_variants.metrics import metric_info

        return metric_info(_DESCRIPTION, _CITATION, _INPUTS)

    def _compute(self, predictions, model_id=None, model=None, tokenizer=None, **options):
        from hf_variants.evaluation.expert_balance import expert_balance
        from hf_variants.metrics import opened

        model, tokenizer = opened("expert_balance", model_id, model, tokenizer)
        return expert_balance(model, tokenizer, predictions, **options)
