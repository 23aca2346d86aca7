"""The section `task`: what is done with each document."""

from typing import Literal

from pydantic import Field

from bulkinfer.job.section import Section


class GenerateTask(Section):
    """Write an answer."""

    kind: Literal["generate"] = Field(default="generate", description="Write an answer to each document.")


TaskSpec = GenerateTask
"""A union, told apart by `kind`, once there are more."""
