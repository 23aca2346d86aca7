-- Tables that came after databases of schema version 1 were in use. A database that lacks them gets them when it is next
-- opened for writing; a bulkinfer that does not know them reads and writes the same database without harm.

-- Scans that were read to the end of their file: document_rows holds all rows of it, to this one.
create table if not exists scan_ends(scan_id uuid not null, last_row bigint not null, ended_at timestamptz not null);
