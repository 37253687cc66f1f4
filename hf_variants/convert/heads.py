"""Which class of ours meets which native class: a head is a name that both sides build.

Notable here: a head is told by the names of classes, for a process can hold two copies of a class that was loaded as remote
code; a folder says it by the `architectures` of its config.
"""

OURS = {
    "causal_lm": "VariantsForCausalLM",
    "masked_lm": "VariantsForMaskedLM",
    "sequence_classification": "VariantsForSequenceClassification",
    "token_classification": "VariantsForTokenClassification",
    "question_answering": "VariantsForQuestionAnswering",
    "seq2seq_lm": "VariantsForSeq2SeqLM",
    "base": "VariantsModel",
}
# model types of the configs of these classes
OUR_TYPES = ("variants", "variants_seq2seq")
_AUTO = {
    "causal_lm": "AutoModelForCausalLM",
    "masked_lm": "AutoModelForMaskedLM",
    "sequence_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "seq2seq_lm": "AutoModelForSeq2SeqLM",
    "base": "AutoModel",
    "image_text_to_text": "AutoModelForImageTextToText",
}

# where transformers lists a language model that its table of language models lacks (Mistral 4)
_ELSEWHERE = {"causal_lm": "AutoModelForImageTextToText"}


def our_class(head):
    """The class of ours for a head."""
    import hf_variants

    return getattr(hf_variants, OURS[head])


def auto_class(head, config=None):
    """transformers' Auto class for a head, the one that knows the class for a native config."""
    import transformers

    usual = getattr(transformers, _AUTO[head])
    other = getattr(transformers, _ELSEWHERE.get(head, _AUTO[head]))
    listed = config is None or type(config) in usual._model_mapping or type(config) not in other._model_mapping
    return usual if listed else other


def native_class(config, head):
    """The native class for a native config and a head. Raises ValueError where there is none."""
    classes = auto_class(head, config)._model_mapping
    if type(config) not in classes:
        raise ValueError(f"{config.model_type} has no class for {_AUTO[head]}")
    return classes[type(config)]


def head_of(cls, config, found):
    """The head of a native class of the family `found`. Raises ValueError naming the classes that convert."""
    names = [base.__name__ for base in cls.__mro__]
    classes = {head: native_class(config, head).__name__ for head in found.heads}
    for head, name in classes.items():
        if name in names:
            return head
    raise ValueError(_no_head(cls.__name__, classes.values()))


def head_of_ours(cls, found):
    """The head of a class of ours, which the family `found` must have. Raises ValueError naming the classes that convert."""
    names = [base.__name__ for base in cls.__mro__]
    for head, name in OURS.items():
        if name in names and head in found.heads:
            return head
    raise ValueError(_no_head(cls.__name__, (OURS[head] for head in found.heads)))


def head_of_config(config, found, head=None):
    """The head to load a checkpoint with: the one asked for, or that of `architectures`, or the only one there is.

    Raises:
        ValueError: for a head that the family lacks, or a config whose `architectures` name none that converts.
    """
    if head is not None:
        if head not in found.heads:
            raise ValueError(f"head={head!r} is no head of {found.model_type}; choose from {list(found.heads)}")
        return head
    if len(found.heads) == 1:
        return next(iter(found.heads))
    wanted = config.architectures or []
    for name in found.heads:
        if native_class(config, name).__name__ in wanted:
            return name
    raise ValueError(
        f"architectures={config.architectures} in the config names no class of {found.model_type} that converts; say "
        f"which head to load with head=, one of {list(found.heads)}"
    )


def _no_head(name, classes):
    needed = " or ".join(classes)
    return (
        f"{name} cannot be converted: {needed} is needed (load with the Auto class of that head; for an adapter call "
        "merge_and_unload() first)"
    )
