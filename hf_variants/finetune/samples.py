"""Answers of the trained model to held-out prompts, beside the answers of the examples."""


def answer(model, tokenizer, records, spec, announce):
    """List of {prompt, expected, answer} of the first `spec.samples` held-out examples, decoded greedily."""
    import torch

    results = []
    was_training = model.training
    model.eval()
    for record in records.select(range(min(spec.samples, len(records)))):
        prompt, expected = _prompt_and_answer(record)
        ids = _prompt_ids(prompt, tokenizer)
        room = min(96, model.config.max_position_embeddings - len(ids))
        if room < 1:
            continue
        batch = torch.tensor([ids], device=model.device)
        options = {"max_new_tokens": room, "do_sample": False, "pad_token_id": tokenizer.pad_token_id}
        with torch.no_grad():
            output = model.generate(input_ids=batch, attention_mask=torch.ones_like(batch), **options)
        text = tokenizer.decode(output[0, len(ids) :], skip_special_tokens=True)
        results.append({"prompt": _last_text(prompt), "expected": _last_text(expected), "answer": text})
        announce(f"{results[-1]['prompt']!r} -> {text!r} (expected {results[-1]['expected']!r})")
    model.train(was_training)
    return results


def _prompt_and_answer(record):
    """What the model is asked, up to the last answer, and that answer."""
    if "prompt" in record:
        return record["prompt"], record["completion"]
    last = max(index for index, message in enumerate(record["messages"]) if message["role"] == "assistant")
    return record["messages"][:last], record["messages"][last : last + 1]


def _prompt_ids(prompt, tokenizer):
    if isinstance(prompt, list):
        encoded = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=True)
        return list(encoded["input_ids"])
    return tokenizer(prompt)["input_ids"]


def _last_text(messages):
    return messages[-1]["content"] if isinstance(messages, list) else messages
