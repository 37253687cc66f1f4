"""A tokenizer of whole words for the digits task: as many tokens as the grammar has words, and a few special ones."""

from .questions import IMAGE, vocabulary

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>", IMAGE)


def word_tokenizer():
    """A `PreTrainedTokenizerFast` that splits at blanks; every row begins with `<bos>`, unknown words are `<unk>`."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = {word: index for index, word in enumerate([*SPECIAL, *vocabulary()])}
    core = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", words["<bos>"])])
    # a special token is found without blanks around it, as the placeholders of an image stand side by side
    core.add_special_tokens([AddedToken(token, lstrip=True, rstrip=True) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
        padding_side="left",
        model_max_length=512,
    )
