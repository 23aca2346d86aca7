"""Which files of an input the database lists completely and as they are now, for who only reads it.

Judges as a run does that begins; see `runs`. Asks for scans alone, not for rows.
"""

from collections.abc import Sequence
from uuid import UUID

from bulkinfer.records import SourceFile
from bulkinfer.store.reports import Reports
from bulkinfer.store.runs import identify_file, is_settled

_HAS_ENDS = "select count(*) from information_schema.tables where table_name = 'scan_ends'"
# Complete where the last row that a scan came to is there.
_COMPLETE = """
    with newest as (
        select * from scans where name = $name
        qualify row_number() over (partition by source order by rowid desc) = 1
    )
    select source, layout, size_bytes, mtime_ns, ctime_ns, inode, scan_id, epoch_ns(created_at)
    from newest n join (select scan_id, max(last_row) as last_row from scan_ends group by scan_id) using (scan_id)
    where last_row = coalesce((select max(d.row) from document_rows d where d.scan_id = n.scan_id), 0)
"""


def find_listed(reader: Reports, name: str, files: Sequence[SourceFile], layout: str) -> dict[UUID, SourceFile]:
    """The files of a job whose newest scan came to their end and that did not change since, by scan.

    Raises StoreError.
    """
    ((has_ends,),) = list(reader.select(_HAS_ENDS, {}))
    if not has_ends:  # of an older version
        return {}
    by_identity: dict[tuple[object, ...], SourceFile] = {identify_file(file, layout): file for file in files}
    found = {}
    for *identity, scan_id, began_ns in reader.select(_COMPLETE, {"name": name}):
        file = by_identity.get(tuple(identity))
        if file is not None and is_settled(file, began_ns):
            found[scan_id] = file
    return found
