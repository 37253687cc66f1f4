"""B51: what a collated batch teaches. Labels are the answers, and neither images nor prompts nor pads."""

import pytest
import torch
from transformers import Trainer, TrainingArguments

from hf_variants.training import ImageTextCollator
from tests.vision_language.test_processor import PICTURE, model_and_processor

EXAMPLES = [
    {"images": [PICTURE, PICTURE], "text": "<image> or <image>? ", "answer": "the first"},
    {"images": [], "text": "no image ", "answer": "no"},
    {"text": "nothing to see: ", "answer": "yes, nothing"},
    {"images": [PICTURE], "text": "<image>", "answer": "a picture"},
]


def spelled(processor, labels):
    return [processor.tokenizer.decode(row[row != -100]) for row in labels]


@pytest.mark.parametrize("keys", [{}, {"image_attention": "prefix"}, {"bridge": "gated_cross_attention"}])
@pytest.mark.parametrize("side", ["left", "right"])
def test_b51_labels_are_the_answers(keys, side):
    model, processor = model_and_processor(**keys)
    processor.tokenizer.padding_side = side
    batch = ImageTextCollator(processor)(EXAMPLES)
    assert spelled(processor, batch["labels"]) == [example["answer"] + "</s>" for example in EXAMPLES]
    is_image = batch["input_ids"] == processor.image_token_id
    assert is_image.any() and (batch["labels"][is_image] == -100).all()
    assert ("token_type_ids" in batch) == ("image_attention" in keys)
    # such labels may be counted by a Trainer
    loss = model(**batch, num_items_in_batch=(batch["labels"] != -100).sum()).loss
    assert torch.allclose(loss, model(**batch).loss)


def test_prompts_can_be_trained_on_but_images_never():
    _, processor = model_and_processor()
    batch = ImageTextCollator(processor, train_on_prompt=True, end="")(EXAMPLES)
    texts = [(example["text"] + example["answer"]).replace("<image>", "") for example in EXAMPLES]
    assert spelled(processor, batch["labels"]) == texts


def test_chats():
    _, processor = model_and_processor()
    question = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is it?"}]}
    answers = ["a picture", [{"type": "text", "text": "a picture"}]]
    for answer in answers:
        example = {"messages": [question, {"role": "assistant", "content": answer}], "images": [PICTURE]}
        batch = ImageTextCollator(processor)([example])
        assert spelled(processor, batch["labels"]) == ["a picture</s>"] and batch["image_counts"].tolist() == [1]
    with pytest.raises(ValueError, match=r"last message of example 0 holds parts of types \['image', 'text'\]"):
        ImageTextCollator(processor)([{"messages": [question, question], "images": [PICTURE]}])


@pytest.mark.parametrize(
    ("example", "options", "message"),
    [
        ({"text": "a"}, {}, r"example 0 .* has the keys \['text'\]; give 'text' and 'answer'"),
        ({"text": "a", "answer": ""}, {"end": ""}, "example 0 .* has no label left: its answer is ''"),
        ({"text": "abcdefgh", "answer": "x"}, {"max_length": 4}, "has no label left.*max_length=4"),
        (
            {"text": "<image>", "answer": "x", "images": [PICTURE]},
            {"max_length": 4},
            "would cut text 0 of .* 4 of its 11 image",
        ),
    ],
)
def test_examples_that_teach_nothing_are_refused(example, options, message):
    _, processor = model_and_processor()
    with pytest.raises(ValueError, match=message):
        ImageTextCollator(processor, **options)([example])


def test_the_trainer_takes_them(tmp_path):
    """Whole, and cut into micro-batches: the same losses."""
    losses = []
    for size, steps in ((4, 1), (2, 2)):
        model, processor = model_and_processor()
        arguments = TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=size,
            gradient_accumulation_steps=steps,
            max_steps=3,
            learning_rate=1e-2,
            logging_steps=1,
            remove_unused_columns=False,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
        )
        trainer = Trainer(model.train(), arguments, data_collator=ImageTextCollator(processor), train_dataset=EXAMPLES)
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[0][0] > losses[0][-1] and torch.allclose(torch.tensor(losses[0]), torch.tensor(losses[1]), atol=1e-3)
