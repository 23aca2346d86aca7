-- The tables of one bulkinfer database, schema version 1. Append-only: nothing here is ever updated or deleted, and there
-- are no indexes (a primary key grows file and commits with every row).
-- Keys are UUIDs that hold the 16 bytes of a hash. The order of rowid is the order of insertion, because nothing is deleted.

create table meta(key varchar not null, value varchar not null);

create table tasks(
    task_fingerprint uuid not null, name varchar not null, spec json, created_at timestamptz not null
);

create table runs(
    run_id uuid not null, name varchar not null, task_fingerprint uuid not null, job_path varchar, host varchar, pid integer,
    version varchar, started_at timestamptz not null,
    seq bigint not null  -- counts runs of this database; clocks go back, this does not
);

create table run_ends(
    run_id uuid not null, status varchar not null, exit_code integer not null, summary json, ended_at timestamptz not null
);

create table scans(
    scan_id uuid not null, name varchar not null, source varchar not null, layout varchar not null,
    size_bytes bigint not null, mtime_ns bigint not null, ctime_ns bigint not null, inode ubigint not null,
    created_at timestamptz not null
);

create table run_inputs(run_id uuid not null, scan_id uuid not null, position integer not null);

create table document_rows(scan_id uuid not null, row bigint not null, document_hash uuid not null, document_id varchar not null);

create table results(
    task_fingerprint uuid not null, document_hash uuid not null, run_id uuid not null, output varchar not null, value json,
    finish_reason varchar, prompt_tokens integer, cached_tokens integer, output_tokens integer,
    queue_s float, first_token_s float, total_s float, attempts integer, completed_at timestamptz
);

create table failures(
    task_fingerprint uuid not null, document_hash uuid not null, source varchar, row bigint, document_id varchar,
    run_id uuid not null, code varchar not null, message varchar, raw_output varchar, attempts integer, retryable boolean,
    failed_at timestamptz
);

create table commits(
    run_id uuid not null, seq bigint not null, rows bigint not null, failed bigint not null, committed_at timestamptz not null,
    document_rows bigint not null, prompt_tokens bigint not null, output_tokens bigint not null,
    commit_s float  -- from the start of the transaction until just before its commit
);

create view newest_runs as
    select * from runs qualify row_number() over (partition by name order by seq desc) = 1;

-- The input of each job as its newest run found it, one line per row that has been read.
create view documents as
    select d.document_hash, s.source, d.row, d.document_id, n.name, i.position
    from newest_runs n
    join run_inputs i on i.run_id = n.run_id
    join scans s on s.scan_id = i.scan_id
    join document_rows d on d.scan_id = i.scan_id;

create view newest_failures as
    select * from failures
    qualify row_number() over (partition by task_fingerprint, document_hash order by failed_at desc, rowid desc) = 1;

create view open_failures as
    select d.name, d.source, d.row, d.document_id, d.document_hash, f.code, f.message, f.raw_output, f.attempts, f.retryable,
        f.failed_at, f.task_fingerprint, f.run_id, d.position
    from documents d
    join newest_runs n on n.name = d.name
    join newest_failures f on f.task_fingerprint = n.task_fingerprint and f.document_hash = d.document_hash
    where not exists (
        select 1 from results r
        where r.task_fingerprint = n.task_fingerprint and r.document_hash = d.document_hash
    );
