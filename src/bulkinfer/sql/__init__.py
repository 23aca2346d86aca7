"""The job's own SQL over its input: `input.where` and `input.sql`. DuckDB evaluates it in a sandbox.

    text --Condition.parse--> Condition --check--> (or JobError) --Judge--> which rows it holds for

It is apart from the job's database, and reads no input itself but Parquet files, which DuckDB reads as it needs them.
"""

from bulkinfer.sql.condition import CannotMatch, Condition, Judge, ParquetFile, iter_matching_parquet
from bulkinfer.sql.query import Query, QueryFault, explained_query, open_query

__all__ = [
    "CannotMatch",
    "Condition",
    "Judge",
    "ParquetFile",
    "Query",
    "QueryFault",
    "explained_query",
    "iter_matching_parquet",
    "open_query",
]
