"""The section `output`: where the answers go."""

from typing import Annotated, Literal

from pydantic import Field

from bulkinfer.job.section import NAME_PATTERN, PathText, Seconds, Section

ParserName = Annotated[str, Field(min_length=1, max_length=100, pattern=NAME_PATTERN)]


class OutputSpec(Section):
    """Where the answers go."""

    database: PathText = Field(
        description="A DuckDB file, relative to the job file. Created if missing; several jobs may share it.",
        examples=["../out/tickets.duckdb"],
    )
    reasoning: ParserName | None = Field(
        default=None,
        description="vLLM's reasoning parser for this model, by its name: what the model thinks aloud is then kept in "
        "`details`, and is no part of the answer.",
        examples=["qwen3", "deepseek_r1"],
    )
    accept_truncated: bool = Field(
        default=False,
        description="Whether an answer that was cut at max_tokens counts: it keeps finish_reason length, and what the "
        "task asks for must be whole all the same. Otherwise it is a failure, truncated. With it the job is another "
        "task than without.",
    )
    repair: Literal["none", "retry", "retry_longer"] = Field(
        default="none",
        description="What a run does about an answer that is cut or is not what the task asks for. `retry`: ask again. "
        "`retry_longer`: again, then with twice the tokens, then with what was wrong shown to the model.",
    )
    max_repairs: int = Field(
        default=3, ge=1, le=5, description="How often at most, for one document; 3 is once for each of these."
    )
    lock_timeout_s: float = Field(
        default=10,
        ge=0,
        le=86_400,
        description="Seconds to wait at the start for other programs that have the database open for reading.",
    )
    stall_timeout_s: float = Field(
        default=300,
        ge=60,
        le=86_400,
        description="Seconds that the disk may take for one commit before the run gives up with exit code 4.",
    )
    client_timeout_s: Seconds = Field(
        default=30,
        description="Seconds that a `query`, `failures` or `export` during the run may say nothing or not read.",
    )
