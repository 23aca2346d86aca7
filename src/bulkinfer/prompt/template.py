"""The prompt of a job, parsed once, rendered for each document."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bulkinfer.job import JobSpec, RowFault, RowSampling, SamplingSpec
from bulkinfer.prompt.budget import Budget
from bulkinfer.prompt.conversation import read_conversation
from bulkinfer.prompt.images import NO_IMAGES, Images, read_images
from bulkinfer.prompt.joining import JoinTemplate
from bulkinfer.prompt.part import DocumentFault, Part, parse_part, render_part
from bulkinfer.prompt.values import Printed
from bulkinfer.records import Document, FailureCode, ImageFields, JsonValue, Message, Origin, Request, Span

_NO_ROW_SAMPLING = RowSampling(SamplingSpec())


@dataclass(frozen=True, slots=True)
class Marked:
    """What the model reads of one document."""

    messages: tuple[Message, ...]
    spans: tuple[Span, ...]
    """The stretches of it that the document brought."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one document asks of the engine."""

    messages: tuple[Message, ...]
    sampling: Mapping[str, JsonValue] = field(default_factory=dict)
    """Sampling parameters that the document brings itself."""
    adapter: str | None = None
    """The LoRA adapter that answers."""
    spans: tuple[Span, ...] = ()
    """As in `Marked`."""
    joined: Mapping[str, JsonValue] | None = None
    """The fields that the answers to parts of it are joined with; None where documents are not split."""

    images: Images = NO_IMAGES
    """Those of its last message."""

    def ask(self, document_hash: bytes, origin: Origin) -> Request:
        """The request for the engine."""
        return Request(
            document_hash,
            origin,
            self.messages,
            sum(len(message.content) for message in self.messages),
            sampling=self.sampling,
            adapter=self.adapter,
            image_files=self.images.files,
            num_image_chars=self.images.num_chars,
            spans=self.spans,
            fields=self.joined,
        )


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """The templates of one job, and the fields that it reads beside them. Several threads may render at a time."""

    parts: tuple[Part, ...]
    messages_field: str | None = None
    """Holds the conversation, behind what the parts make."""
    row_sampling: RowSampling = _NO_ROW_SAMPLING
    adapter: str | None = None
    """That of all documents; likewise the next two."""
    adapter_field: str | None = None
    adapters: frozenset[str] = frozenset()
    image_fields: tuple[str, ...] = ()
    """Hold images for the last message."""
    combine: JoinTemplate | None = None
    """Joins the answers to the parts of a document, where documents are split."""

    @classmethod
    def parse(cls, system: str | None, user: str) -> "PromptTemplate":
        """Of a system and a user message alone. Raises JobError as `of` does."""
        given = (("system", system), ("user", user))
        return cls(tuple(parse_part(f"prompt.{role}", role, source) for role, source in given if source is not None))

    @classmethod
    def of(cls, spec: JobSpec) -> "PromptTemplate":
        """Raises JobError, naming template and line, for what does not parse and for what prompts do not have."""
        prompt = spec.prompt
        parts = [parse_part(f"prompt.{key}", key, source) for key, source in prompt.templates.items()]
        turns = [
            replace(parse_part(f"prompt.turns.{index}", turn.role, turn.content), is_optional=True)
            for index, turn in enumerate(prompt.turns or ())
        ]
        num_before = 0 if prompt.system is None else 1
        parts[num_before:num_before] = turns
        model = spec.model
        return cls(
            tuple(parts),
            prompt.messages,
            RowSampling(spec.sampling, spec.task),
            model.adapter,
            model.adapter_column,
            frozenset(model.adapters or ()),
            prompt.images or (),
            _parse_combine(spec),
        )

    @property
    def fields(self) -> frozenset[str]:
        """The fields of a document that are read, whether they must be there or not."""
        joined = self.combine.fields if self.combine else frozenset[str]()
        return self.columns.union(joined, *(part.fields for part in self.parts))

    @property
    def columns(self) -> frozenset[str]:
        """Those of them that the job names as a whole, outside of templates."""
        named = (self.messages_field, self.adapter_field, *self.image_fields)
        return self.row_sampling.fields.union(name for name in named if name is not None)

    def describe_images(self, folder: str) -> ImageFields | None:
        """Where documents hold images; None where none do. `folder`: see there."""
        if not self.image_fields:
            return None
        printed = frozenset[str]().union(*(part.fields for part in self.parts))
        joined = self.combine.fields if self.combine else frozenset[str]()
        return ImageFields(self.image_fields, folder, (printed | joined).intersection(self.image_fields))

    @property
    def num_chars(self) -> int:
        """Characters of template text that each document gets a copy of. Text without fields is shared by all."""
        return sum(part.num_chars for part in self.parts if part.fields)

    def bound_bytes(self, fields_bytes: int) -> int | None:
        """The most bytes that the messages can have where each field printed adds at most `fields_bytes`.

        None where the templates set no bound, where the chat template adds to more than two messages, and where
        documents say themselves how much room their answers need.
        """
        prints = [part.num_prints for part in self.parts if part.num_prints is not None]
        is_plain = len(self.parts) <= 2 and self.messages_field is None  # a system and a user message
        if len(prints) < len(self.parts) or not is_plain or "max_tokens" in self.row_sampling.parameters:
            return None
        return sum(part.num_bytes for part in self.parts) + sum(prints) * fields_bytes

    def render(self, document: Document) -> tuple[Message, ...] | DocumentFault:
        """What the model reads of one document, a message for each template. Never raises for a fault of the document.

        A system message and turns without text are left out; any other must have some.
        """
        rendered = self.render_marked(document, notes_spans=False)
        return rendered.messages if isinstance(rendered, Marked) else rendered

    def render_marked(self, document: Document, *, notes_spans: bool = True) -> Marked | DocumentFault:
        """The same, and which stretches of it are the document's: printed numbers are not told, nor is what a template
        prints of its own. What a `{% set %}` block gathers is the document's as a whole if a field is in it.

        Without `notes_spans` there are none, and nothing is spent on them.
        """
        budget = Budget()
        printed = Printed() if notes_spans else None
        messages: list[Message] = []
        spans: list[Span] = []
        for part in self.parts:
            rendered = render_part(part, document, budget, printed)
            if isinstance(rendered, DocumentFault):
                return rendered
            content, stretches = rendered
            if content and not content.isspace():
                spans += (Span(len(messages), start, end) for start, end in stretches)
                messages.append(Message(part.role, content))
            elif not part.is_optional:
                return DocumentFault(FailureCode.EMPTY_PROMPT, f"{part.name} gives no text on this document")
        if self.messages_field is None:
            return Marked(tuple(messages), tuple(spans))
        return self._add_conversation(document, messages, spans, notes_spans=notes_spans)

    def prepare(self, document: Document, *, notes_spans: bool = False) -> Prompt | DocumentFault:
        """The messages for one document, and what it says about its answer. Never raises for a fault of it."""
        match self.row_sampling.read(document.fields):
            case RowFault(message):
                return DocumentFault(FailureCode.INVALID_FIELD, message)
            case sampling:
                pass
        adapter = self.adapter if self.adapter_field is None else document.fields.get(self.adapter_field)
        if adapter is not None and (not isinstance(adapter, str) or adapter not in self.adapters):
            expected = "a name of model.adapters, or null"
            message = f"model.adapter_column: the field {self.adapter_field}: expected {expected}"
            return DocumentFault(FailureCode.INVALID_FIELD, message)
        marked = self.render_marked(document, notes_spans=notes_spans)
        if isinstance(marked, DocumentFault):
            return marked
        messages = marked.messages
        images = read_images(self.image_fields, document)
        if isinstance(images, DocumentFault):
            return images
        if images.urls:
            messages = (*messages[:-1], replace(messages[-1], images=images.urls))
        joined = None if self.combine is None else self.combine.select(document)
        return Prompt(messages, sampling, adapter, marked.spans, joined, images)

    def _add_conversation(
        self, document: Document, before: list[Message], spans: list[Span], *, notes_spans: bool
    ) -> Marked | DocumentFault:
        """All that the row brings may be cut, but for its system message."""
        assert self.messages_field is not None
        found = read_conversation(self.messages_field, document.fields)
        if isinstance(found, DocumentFault):
            return found
        if found[0].role == "system":
            before, spans = [], []
        if notes_spans:
            contents = ((len(before) + index, message) for index, message in enumerate(found))
            spans = spans + [Span(at, 0, len(one.content)) for at, one in contents if one.role != "system"]
        return Marked((*before, *found), tuple(spans))


def _parse_combine(spec: JobSpec) -> JoinTemplate | None:
    """It must parse if it is there; it has a meaning where documents are split."""
    template = None if spec.prompt.combine is None else JoinTemplate.parse(spec.prompt.combine)
    return template if spec.limits.overlong == "split" else None
