"""Batches of images and text for training: what the model is to say is labelled, and nothing else.

Notable here: image tokens, prompts and pads are never labels, so neither the loss nor the count of tokens that it is averaged
over sees them.
"""

from ..modeling.losses import IGNORE


class ImageTextCollator:
    """Collates examples for `VariantsForImageTextToText`; for a Trainer with `remove_unused_columns=False`.

    An example is {"images": [pictures], "text": prompt with `<image>` placeholders, "answer": text}, or {"messages": chat,
    "images": [pictures]}, whose last message is the answer and whose image parts take the images in order.

    Args:
        processor: a `VariantsProcessor`.
        max_length: longer rows are cut, unless that would cut an image, which is refused; None for no limit.
        train_on_prompt: label the prompt's words too.
        end: what is put behind each answer; None gives the tokenizer's end-of-text token, "" nothing.
    """

    def __init__(self, processor, max_length=None, train_on_prompt=False, end=None):
        self.processor, self.max_length, self.train_on_prompt = processor, max_length, train_on_prompt
        self.end = (processor.tokenizer.eos_token or "") if end is None else end

    def __call__(self, examples):
        """Tensors of a batch, with `labels` [B, T] that are -100 at images, prompts and pads.

        Raises:
            ValueError: for an example without an answer or of which no label is left; and as the processor.
        """
        prompts, answers = zip(*(self._split(example, row) for row, example in enumerate(examples)), strict=True)
        images = [list(example.get("images") or []) for example in examples]
        cut = {} if self.max_length is None else {"truncation": True, "max_length": self.max_length}
        batch = self.processor(
            images=images if any(images) else None,
            text=list(prompts),
            suffix=[answer + self.end for answer in answers],
            padding=True,
            return_tensors="pt",
            **cut,
        )
        types = batch["token_type_ids"] if self.processor.prefix else batch.pop("token_type_ids")
        hidden = (batch["attention_mask"] == 0) | (batch["input_ids"] == self.processor.image_token_id)
        if not self.train_on_prompt:
            hidden = hidden | (types == 0)
        batch["labels"] = batch["input_ids"].masked_fill(hidden, IGNORE)
        for row, labels in enumerate(batch["labels"]):
            if not bool((labels != IGNORE).any()):
                raise ValueError(
                    f"example {row} of the batch has no label left: its answer is {answers[row]!r}, "
                    f"max_length={self.max_length}"
                )
        return batch

    def _split(self, example, row):
        """(prompt, answer) of an example."""
        if "messages" in example:
            *before, last = example["messages"]
            prompt = self.processor.apply_chat_template(before, add_generation_prompt=True)
            return prompt, _text_of(last["content"], row)
        if not isinstance(example.get("answer"), str) or not isinstance(example.get("text"), str):
            raise ValueError(
                f"example {row} of the batch has the keys {sorted(example)}; give 'text' and 'answer', both strings, "
                "or 'messages'"
            )
        return example["text"], example["answer"]


def _text_of(content, row):
    if isinstance(content, str):
        return content
    kinds = {part.get("type") for part in content}
    if kinds != {"text"}:
        raise ValueError(
            f"the last message of example {row} holds parts of types {sorted(map(str, kinds))}; an answer is text alone"
        )
    return "".join(part["text"] for part in content)
