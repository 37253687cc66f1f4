"""Published training runs beside what laws call compute-optimal for their size.

Notable here: parameters are the models' exact counts and tokens those that their reports state.
"""

from .laws import PUBLISHED, ScalingLaw

PRACTICE = (
    ("TinyLlama 1.1B", 1_100_048_384, 3.0e12, "Zhang et al. 2024, arXiv 2401.02385"),
    ("LLaMA 1 7B", 6_738_415_616, 1.0e12, "Touvron et al. 2023, arXiv 2302.13971"),
    ("LLaMA 2 7B", 6_738_415_616, 2.0e12, "Touvron et al. 2023, arXiv 2307.09288"),
    ("LLaMA 3 8B", 8_030_261_248, 15.0e12, "Llama 3 model card: more than 15T tokens"),
    ("LLaMA 2 70B", 68_976_648_192, 2.0e12, "Touvron et al. 2023, arXiv 2307.09288"),
    ("LLaMA 3 70B", 70_553_706_496, 15.0e12, "Llama 3 model card: more than 15T tokens"),
    ("LLaMA 3.1 405B", 405_853_388_800, 15.6e12, "Grattafiori et al. 2024, arXiv 2407.21783"),
)


def overtraining_table(laws=None):
    """Rows (dicts) of `PRACTICE`: tokens at 20 per parameter and by each law, the over-training factor against each, and the
    inference volume that justifies the run.

    Args:
        laws: {name: ScalingLaw}; default the published ones.
    """
    laws = PUBLISHED if laws is None else laws
    rows = []
    for name, parameters, tokens, source in PRACTICE:
        row = {"model": name, "parameters": parameters, "tokens": tokens, "source": source}
        row["rule_of_20"] = {"optimal_tokens": 20.0 * parameters, "overtraining": tokens / (20.0 * parameters)}
        for law_name, law in laws.items():
            row[law_name] = _against(law, parameters, tokens)
        rows.append(row)
    return rows


def _against(law: ScalingLaw, parameters, tokens):
    optimal = law.optimal_tokens(parameters)
    inference = law.justifying_inference(parameters, tokens)
    return {
        "optimal_tokens": optimal,
        "overtraining": tokens / optimal,
        "justified_by_inference": inference if inference > 0 else None,
        "loss": law.loss(parameters, tokens),
    }
