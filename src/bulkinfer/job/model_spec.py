"""The section `model`: who answers."""

from typing import Annotated

from pydantic import Field

from bulkinfer.job.section import NAME_PATTERN, ColumnName, PathText, Section, Text, missing_key, wrong_value

AdapterName = Annotated[str, Field(min_length=1, max_length=100, pattern=NAME_PATTERN)]
Adapters = Annotated[dict[AdapterName, PathText], Field(min_length=1, max_length=1000)]


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
    adapters: Adapters | None = Field(
        default=None,
        description="LoRA adapters of this model: a name for each folder, as PEFT writes it, relative to the job file.",
        examples=[{"support": "../adapters/support"}],
    )
    adapter: AdapterName | None = Field(
        default=None,
        description="The adapter, by its name in `adapters`, that answers all documents.",
        examples=["support"],
    )
    adapter_column: ColumnName | None = Field(
        default=None,
        description="The field of the documents that names the adapter of each; null: the model without any.",
        examples=["adapter"],
    )


def check_adapters(model: ModelSpec) -> None:
    """Refuse adapters that nothing chooses, and a choice that there is none for. Raises PydanticCustomError."""
    known = model.adapters or {}
    if model.adapter is not None and model.adapter_column is not None:
        advice = "choose the adapter for all documents, or for each"
        raise wrong_value(
            "nothing beside model.adapter", advice, path=("model", "adapter_column"), found=model.adapter_column
        )
    if model.adapter is not None and model.adapter not in known:
        expected = f"one of {', '.join(sorted(known))}" if known else "a name in model.adapters, which is missing"
        raise wrong_value(expected, path=("model", "adapter"), found=model.adapter)
    if model.adapter_column is not None and not known:
        raise missing_key(("model", "adapters"), "model.adapter_column chooses among them")
    if known and model.adapter is None and model.adapter_column is None:
        raise missing_key(("model", "adapter"), "it chooses among model.adapters, or adapter_column does")
