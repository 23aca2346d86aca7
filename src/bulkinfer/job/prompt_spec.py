"""The sections `model` and `prompt`: who is asked, and what."""

from collections.abc import Mapping

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
    """What is made of one document: Jinja templates over its fields. Which are wanted, `task.kind` says."""

    system: Text | None = Field(
        default=None,
        description="The system message.",
        examples=["You summarise customer support tickets."],
    )
    user: Text | None = Field(default=None, description="The user message.", examples=["{{ subject }}\n\n{{ body }}"])
    text: Text | None = Field(
        default=None,
        description="With task.kind embed: the text that is embedded. No chat template is put around it.",
        examples=["{{ subject }}\n\n{{ body }}"],
    )
    query: Text | None = Field(
        default=None, description="With task.kind score: what is looked for.", examples=["{{ question }}"]
    )
    document: Text | None = Field(
        default=None, description="With task.kind score: what is judged by the query.", examples=["{{ passage }}"]
    )

    @property
    def templates(self) -> Mapping[str, str]:
        """Those that are given, by key, in the order in which the model reads them."""
        keys = ("system", "user", "text", "query", "document")
        return {key: template for key in keys if (template := getattr(self, key)) is not None}
