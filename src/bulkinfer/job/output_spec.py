"""The section `output`: where the answers go."""

from pydantic import Field

from bulkinfer.job.section import PathText, Seconds, Section


class OutputSpec(Section):
    """Where the answers go."""

    database: PathText = Field(
        description="A DuckDB file, relative to the job file. Created if missing; several jobs may share it.",
        examples=["../out/tickets.duckdb"],
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
