"""The model card: README.md beside saved weights, with numbers counted from the config.

Notable here: everything of ours stands between two markers and is refreshed on each save, what stands outside them is the
user's; a README without markers is left as it is, unless it is empty or written by a tool that knows nothing of the model.
"""

from functools import lru_cache
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from transformers.utils import logging
from yaml import YAMLError

from .card_facts import card_facts
from .card_trainer import keep_card_of_trainer
from .run_section import RUN_BEGIN

logger = logging.get_logger(__name__)

BEGIN, END = "<!-- hf_variants: begin -->", "<!-- hf_variants: end -->"
TAGS = ("variants", "hf_variants")

# Cards that tools write unasked: the Trainer's and PEFT's drafts gain our section, the blank one of a push is replaced.
_DRAFTS = ("<!-- This model card has been generated automatically according to the information the Trainer",)
_BLANK_DESCRIPTION = (
    "This is the model card of a 🤗 transformers model that has been pushed on the Hub. This model card has been "
    "automatically generated."
)


def write_card(model, directory, repo_id=None):
    """Write or refresh `directory`/README.md for a model of the family.

    Args:
        model: the model that was saved there.
        directory: where its files stand.
        repo_id: the repo it goes to, for the example code; None leaves a placeholder.
    """
    keep_card_of_trainer()
    path = Path(directory) / "README.md"
    text = path.read_text(encoding="utf-8-sig") if path.is_file() else ""
    if not _may_change(text):
        return
    try:
        card = _parse(text)
    except (ValueError, YAMLError) as error:
        logger.warning(f"The metadata of {path} cannot be read, so the model card was left as it is: {error}")
        return
    facts = card_facts(model, repo_id, directory)
    if _is_empty(card.text):
        card.text = f"\n# {facts['title']}\n\n{_block(facts)}\n"
    elif _is_marked(card.text):
        before, after = card.text.index(BEGIN), card.text.index(END) + len(END)
        card.text = card.text[:before] + _block(facts) + card.text[after:]
    else:
        card.text = f"{card.text.rstrip()}\n\n{_block(facts)}\n"
    _merge_metadata(card.data, facts, repo_id)
    card.save(path)


def card_section(model, repo_id=None):
    """The part of the card that is ours, as markdown without its markers."""
    return card_facts(model, repo_id)["section"]


def _block(facts):
    return f"{BEGIN}\n{facts['section']}\n{END}"


def _may_change(text):
    """Whether a card is ours, a tool's, or holds nothing but metadata."""
    body = REGEX_YAML_BLOCK.sub("", text, count=1)
    return _is_marked(body) or RUN_BEGIN in body or _is_empty(body) or any(draft in body for draft in _DRAFTS)


def _is_marked(body):
    return BEGIN in body and END in body


def _is_empty(body):
    """Whether a card says nothing: no text at all, or the blank form that a push fills in."""
    return body.strip() in ("", _blank())


@lru_cache(maxsize=1)
def _blank():
    return ModelCard.from_template(ModelCardData(), model_description=_BLANK_DESCRIPTION).text.strip()


def _parse(text):
    has_metadata = REGEX_YAML_BLOCK.search(text) is not None
    return ModelCard(text if has_metadata else f"---\n{{}}\n---\n{text}", ignore_metadata_errors=True)


def _merge_metadata(data, facts, repo_id):
    """Add what is known to the metadata; what a user set stays."""
    data.library_name = data.library_name or "transformers"
    data.pipeline_tag = data.pipeline_tag or facts["pipeline_tag"]
    given = [data.tags] if isinstance(data.tags, str) else list(data.tags or [])
    data.tags = given + [tag for tag in TAGS if tag not in given]
    if data.base_model is None and facts["base_model"] not in (None, repo_id):
        data.base_model = facts["base_model"]
