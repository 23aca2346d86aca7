"""The sections `model` and `prompt`: who is asked, and what."""

from pydantic import Field

from bulkinfer.job.section import PathText, Section, Text


class ModelSpec(Section):
    """The model that answers."""

    path: PathText = Field(
        description="A model folder (relative to the job file) or a Hugging Face hub id.",
        examples=["../models/my-model", "HuggingFaceTB/SmolLM2-135M-Instruct"],
    )
    revision: Text | None = Field(
        default=None, max_length=200, description="Branch, tag or commit of a hub id. Give a commit to be repeatable."
    )
    chat_template: Text | None = Field(
        default=None, description="A Jinja chat template, instead of the one that comes with the model."
    )
    trust_remote_code: bool = Field(default=False, description="Run Python code that comes with the model.")


class PromptSpec(Section):
    """The conversation that is made of one document. Both are Jinja templates over the document's fields."""

    system: Text | None = Field(
        default=None,
        description="The system message.",
        examples=["You summarise customer support tickets."],
    )
    user: Text = Field(description="The user message.", examples=["{{ subject }}\n\n{{ body }}"])
