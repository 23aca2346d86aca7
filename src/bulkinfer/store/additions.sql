-- Tables that came after databases of schema version 1 were in use. A database that lacks them gets them when it is next
-- opened for writing; a bulkinfer that does not know them reads and writes the same database without harm.

-- Scans that were read to the end of their file: document_rows holds all rows of it, to this one.
create table if not exists scan_ends(scan_id uuid not null, last_row bigint not null, ended_at timestamptz not null);

-- How a run stood every few seconds, written with the commit `seq`: what a report draws over time. Counts are from the start
-- of the run; see store/samples.py. A stall is a long `silence_s`.
create table if not exists samples(
    run_id uuid not null, seq bigint not null, sampled_at timestamptz not null, elapsed_s double not null,
    read bigint, succeeded bigint, failed bigint, queued bigint, in_flight bigint, active bigint, kv_cache_usage float,
    preemptions bigint, restarts bigint, engine_steps bigint, prompt_tokens bigint, cached_tokens bigint,
    output_tokens bigint, runner_memory_bytes bigint, engine_memory_bytes bigint, gpu_memory_bytes bigint,
    silence_s float, silence_ended_s double,
    settings json  -- of the engine, where they are others than in the line before
);

-- Columns that came after the table; databases in use have it without them.
alter table samples add column if not exists gpu_memory_bytes bigint;

alter table results add column if not exists details json;  -- what the task or its policies add: docs/jobs.md
alter table results add column if not exists vector float[];
alter table failures add column if not exists details json;

-- Answers to the parts of documents that are too long (`limits.overlong: split`), and to the questions that join them. Not
-- outcomes: the document that was split has its line in results or failures. What was asked is known by its hash.
create table if not exists parts(
    task_fingerprint uuid not null, part_hash uuid not null, document_hash uuid not null, run_id uuid not null,
    output varchar not null, prompt_tokens integer, cached_tokens integer, output_tokens integer, attempts integer,
    answered_at timestamptz
);
alter table parts add column if not exists finish_reason varchar;  -- null: nobody knows whether it was cut
alter table parts add column if not exists repairs json;

create or replace view answers as
    select d.document_id, d.source, d.row, r.output, r.value, r.finish_reason, r.prompt_tokens, r.cached_tokens,
        r.output_tokens, r.queue_s, r.first_token_s, r.total_s, r.attempts, r.completed_at,
        d.name, r.task_fingerprint, r.document_hash, r.run_id, r.details, r.vector
    from documents d
    join newest_runs n on n.name = d.name
    join results r on r.task_fingerprint = n.task_fingerprint and r.document_hash = d.document_hash;
