"""The template that joins the answers to the parts of one document into one question: `prompt.combine`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bulkinfer.errors import JobError
from bulkinfer.prompt.budget import Budget
from bulkinfer.prompt.part import DocumentFault, Part, parse_part, render_part
from bulkinfer.records import Document, FailureCode, JsonValue, Message, Origin

PARTS = "parts"
"""What the template knows the answers as; a field of that name it does not see."""
_NOWHERE = Origin("", 0, "")


@dataclass(frozen=True, slots=True)
class JoinTemplate:
    """Parsed once, rendered for each document that is split."""

    part: Part

    @classmethod
    def parse(cls, source: str) -> "JoinTemplate":
        """Raises JobError for what does not parse, and for a template that does not use the answers."""
        part = parse_part("prompt.combine", "user", source)
        if PARTS not in part.fields:
            raise JobError(f"{part.name}: it does not use {PARTS}, the list of the answers that it joins", part.name)
        return cls(part)

    @property
    def fields(self) -> frozenset[str]:
        """The fields of a document that it uses."""
        return self.part.fields - {PARTS}

    def select(self, document: Document) -> Mapping[str, JsonValue]:
        """Those of a document."""
        return {name: document.fields[name] for name in self.fields if name in document.fields}

    def render(self, answers: Sequence[str], fields: Mapping[str, JsonValue]) -> Message | DocumentFault:
        """The user message that joins the answers. Never raises for a fault of the document."""
        rendered = render_part(self.part, Document(_NOWHERE, {**fields, PARTS: list(answers)}), Budget())
        if isinstance(rendered, DocumentFault):
            return rendered
        content, _ = rendered
        if not content or content.isspace():
            return DocumentFault(FailureCode.EMPTY_PROMPT, f"{self.part.name} gives no text on this document")
        return Message("user", content)
