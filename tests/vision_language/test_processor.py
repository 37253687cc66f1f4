"""The processor: pictures of any kind, placeholders, truncation (B50), chats, folders, and the pipeline."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor, pipeline

from hf_variants import VariantsProcessor
from hf_variants.modeling.pictures import to_picture
from hf_variants.modeling.processing_variants import CHAT_TEMPLATE
from tests.tokenizers_for_tests import byte_level_bpe
from tests.towers import native_config
from tests.vision import BRIDGES, GATED, vlm

GREY = np.arange(20 * 15, dtype=np.uint8).reshape(20, 15)
PICTURE = Image.fromarray(np.stack([GREY, GREY[::-1], GREY.T.reshape(20, 15)], axis=-1))


def model_and_processor(**keys):
    tokenizer = byte_level_bpe()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.padding_side = "left"
    image_id = tokenizer.convert_tokens_to_ids("<image>")
    text = {"vocab_size": len(tokenizer), "max_position_embeddings": 256, **keys.pop("text_keys", {})}
    model = vlm(text_keys=text, image_token_id=image_id, **keys)
    return model, VariantsProcessor.for_model(model.config, tokenizer)


@pytest.mark.parametrize("bridge", BRIDGES)
def test_rows_of_texts_with_two_images_one_and_none(bridge):
    model, processor = model_and_processor(**BRIDGES[bridge])
    texts = ["<image>a<image>", "no image", "b <image> c"]
    inputs = processor(images=[PICTURE] * 3, text=texts, padding=True, return_tensors="pt")
    assert inputs["image_counts"].tolist() == [2, 0, 1] and inputs["pixel_values"].shape == (3, 3, 12, 12)
    nested = processor(images=[[PICTURE] * 2, [], [PICTURE]], text=texts, padding=True, return_tensors="pt")
    assert all(torch.equal(inputs[name], nested[name]) for name in inputs)
    for row, text, count in zip(inputs["input_ids"], texts, (2, 0, 1), strict=True):
        words = processor.tokenizer(text.replace("<image>", ""))["input_ids"]
        tokens = len(processor.tokenizer(text)["input_ids"]) - count
        assert int((row != 0).sum()) == tokens + count * model.config.tokens_of_image() and words
    with torch.no_grad():
        together = model(**inputs).logits
        alone = model(**processor(images=[PICTURE] * 2, text=texts[:1], return_tensors="pt")).logits
    assert torch.allclose(together[0, -alone.shape[1] :], alone[0], atol=1e-5)
    assert set(inputs) == {"input_ids", "attention_mask", "pixel_values", "image_counts"}


def test_length_is_features_delimiters_and_text():
    """L = sum(N_i + 2) + T for images of different sizes."""
    model, _ = model_and_processor(tower="dinov2")
    processor = model_and_processor(tower="dinov2")[1]
    processor.image_processor.do_resize = False
    sizes = [(12, 12), (8, 16), (16, 4)]
    images = [np.zeros((*size, 3), dtype=np.uint8) for size in sizes]
    inputs = processor(images=images, text="x<image>y<image><image>", return_tensors="pt")
    text = len(processor.tokenizer("xy")["input_ids"])
    assert inputs["input_ids"].shape[1] == sum(h // 4 * (w // 4) + 2 for h, w in sizes) + text
    assert inputs["image_sizes"].tolist() == [list(size) for size in sizes] and inputs["pixel_values"].shape[2:] == (16, 16)
    with torch.no_grad():
        assert model(**inputs).logits.shape[1] == inputs["input_ids"].shape[1]


MODES = {
    "RGB": PICTURE,
    "L": PICTURE.convert("L"),
    "1": PICTURE.convert("1"),
    "P": PICTURE.convert("P"),
    "RGBA": PICTURE.convert("RGBA"),
    "LA": PICTURE.convert("LA"),
    "CMYK": PICTURE.convert("CMYK"),
    "YCbCr": PICTURE.convert("YCbCr"),
    "I": Image.fromarray(GREY.astype(np.int32)),
    "I;16": Image.fromarray(GREY.astype(np.uint16) * 257),
}


@pytest.mark.parametrize("mode", MODES)
def test_pictures_of_every_mode(mode):
    for channels in (1, 3):
        made = to_picture(MODES[mode], channels)
        assert made.mode == {1: "L", 3: "RGB"}[channels] and made.size == (15, 20)
    if mode in ("I", "I;16"):
        assert (np.asarray(to_picture(MODES[mode], 1)) == GREY).all()
    if mode == "RGBA":
        assert (np.asarray(to_picture(MODES[mode], 3)) == np.asarray(PICTURE)).all()


def test_arrays_and_tensors_say_their_range_by_their_type(tmp_path):
    wanted = np.asarray(PICTURE)
    PICTURE.save(tmp_path / "picture.png")
    scaled = wanted.astype(np.float32) / 255
    kinds = [wanted, wanted.transpose(2, 0, 1), scaled, torch.tensor(scaled).permute(2, 0, 1), str(tmp_path / "picture.png")]
    kinds += [tmp_path / "picture.png", wanted.tolist() and torch.tensor(wanted)]
    for kind in kinds:
        assert (np.asarray(to_picture(kind, 3)) == wanted).all()
    clear = Image.new("RGBA", (2, 2), (0, 0, 0, 0))
    assert to_picture(clear, 3).getpixel((0, 0)) == (255, 255, 255)


def test_a_picture_that_is_none_is_named(tmp_path):
    _, processor = model_and_processor()
    PICTURE.resize((200, 200)).save(tmp_path / "whole.png")
    data = (tmp_path / "whole.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(data[: len(data) // 2])
    (tmp_path / "text.png").write_text("no picture")
    broken = {
        str(tmp_path / "cut.png"): "image 1 .*truncated|image 1 .*damaged",
        str(tmp_path / "text.png"): "image 1 is the file .*text.png, which is no picture or damaged",
        str(tmp_path / "absent.png"): "image 1 is the file .*absent.png, which does not exist",
    }
    cases = [*broken.items(), (Image.open(tmp_path / "cut.png"), "image 1 cannot be read")]
    cases += [
        (GREY.astype(np.float32), "image 1 holds torch.float32 from 0 to 255; give bytes"),
        (GREY.astype(np.int64), "image 1 holds torch.int64"),
        (np.full((3, 3), np.nan, dtype=np.float32), "image 1 holds torch.float32 from nan"),
        (np.zeros((2, 3, 5, 7), dtype=np.uint8), r"image 1 has the shape \(2, 3, 5, 7\)"),
        (np.zeros((0, 4), dtype=np.uint8), r"image 1 has the shape \(0, 4\)"),
        (PICTURE.convert("L").convert("F"), "image 1 is of mode 'F'"),
        (object(), "image 1 is a object"),
    ]
    for image, message in cases:
        with pytest.raises(ValueError, match=message):
            processor(images=[PICTURE, image], text="<image><image>")


@pytest.mark.parametrize(
    ("images", "text", "message"),
    [
        ([PICTURE], "<image> and <image>", r"the texts hold 2 '<image>' \(\[2\]\), but 1 images were given"),
        ([PICTURE], "none", "the texts hold 0 '<image>'"),
        (None, "<image>", "the texts hold 1 '<image>'.*but 0 images"),
        ([[PICTURE], [PICTURE]], ["<image><image>", ""], r"hold \[2, 0\] '<image>', but \[1, 1\] images"),
        (None, None, "give text, images, or both"),
    ],
)
def test_b50_numbers_of_images_and_placeholders(images, text, message):
    _, processor = model_and_processor()
    with pytest.raises(ValueError, match=message):
        processor(images=images, text=text)


def test_b50_truncation_keeps_images_or_refuses():
    _, processor = model_and_processor()
    kept = processor(images=PICTURE, text="<image>" + "a" * 30, truncation=True, max_length=15)
    assert len(kept["input_ids"][0]) == 15
    with pytest.raises(
        ValueError, match="truncation to max_length=15 would cut text 1 of .* tokens down to 1 of its 11 image"
    ):
        texts = ["<image>" + "abcdefghijklmnop" * 2, "qrstuvwxyzabcd<image>"]
        processor(images=[PICTURE] * 2, text=texts, truncation=True, max_length=15)
    processor.tokenizer.truncation_side = "left"
    with pytest.raises(ValueError, match="would cut text 0"):
        processor(images=PICTURE, text="<image>" + "a" * 30, truncation=True, max_length=15)


def test_a_tokenizer_without_the_image_token_is_refused():
    model, _ = model_and_processor()
    with pytest.raises(ValueError, match="'<image>' is no token of the tokenizer"):
        VariantsProcessor.for_model(model.config, byte_level_bpe())
    other = byte_level_bpe()
    other.add_special_tokens({"additional_special_tokens": ["<other>", "<image>"]})
    with pytest.raises(ValueError, match="is id .* but the config says image_token_id="):
        VariantsProcessor.for_model(model.config, other)


def test_a_suffix_is_marked():
    _, processor = model_and_processor(image_attention="prefix")
    inputs = processor(images=PICTURE, text="<image>how many?", suffix=" seven", return_tensors="pt")
    types, ids = inputs["token_type_ids"][0], inputs["input_ids"][0]
    assert processor.tokenizer.decode(ids[types == 1]) == " seven" and types.diff().abs().sum() == 1
    alone = processor(images=PICTURE, text="<image>how many?")
    assert set(alone["token_type_ids"][0]) == {0}
    with pytest.raises(ValueError, match="1 texts, but 2 suffixes"):
        processor(images=PICTURE, text="<image>", suffix=["a", "b"])


@pytest.mark.parametrize("keys", [{}, {"token_compression": "pool"}, GATED], ids=["projection", "pool", "gated"])
def test_a_folder_holds_model_and_processor(tmp_path, keys):
    tower = native_config("siglip_vision_model", image_size=16)
    model, processor = model_and_processor(tower=tower, **keys)
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    again = AutoProcessor.from_pretrained(tmp_path)
    given = {"images": [PICTURE], "text": ["see <image>"], "return_tensors": "pt"}
    one, two = processor(**given), again(**given)
    assert type(again) is VariantsProcessor and all(torch.equal(one[name], two[name]) for name in one)
    assert (tmp_path / "processing_variants.py").is_file() and again.chat_template == CHAT_TEMPLATE


@pytest.mark.parametrize("bridge", ["projection", "gated"])
def test_the_pipeline(tmp_path, bridge):
    model, processor = model_and_processor(**BRIDGES[bridge])
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    pipe = pipeline("image-text-to-text", model=str(tmp_path), device="cpu")
    options = {"max_new_tokens": 5, "do_sample": False}
    inputs = processor(images=PICTURE, text="<image>what?", return_tensors="pt")
    with torch.no_grad():
        expected = model.generate(**inputs, **options)[0, inputs["input_ids"].shape[1] :]
    expected = processor.tokenizer.decode(expected, skip_special_tokens=True)
    found = pipe(images=PICTURE, text="<image>what?", generate_kwargs=options, return_full_text=False)
    assert found[0]["generated_text"] == expected
    chat = [{"role": "user", "content": [{"type": "image", "image": PICTURE}, {"type": "text", "text": "what?"}]}]
    spelled = processor.apply_chat_template(chat, add_generation_prompt=True)
    assert spelled == "user: <image>what?\nassistant: "
    inputs = processor(images=PICTURE, text=spelled, return_tensors="pt")
    with torch.no_grad():
        expected = model.generate(**inputs, **options)[0, inputs["input_ids"].shape[1] :]
    expected = processor.tokenizer.decode(expected, skip_special_tokens=True)
    found = pipe(text=chat, generate_kwargs=options, return_full_text=False)
    assert found[0]["generated_text"] == expected
    plain = pipe(text="no picture", generate_kwargs=options)
    assert plain[0]["generated_text"].startswith("no picture")
