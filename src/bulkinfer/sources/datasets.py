"""Folders that Hugging Face's `datasets` wrote with `save_to_disk`: which of their files hold the rows.

A dataset is a folder with `state.json` and Arrow streams; a `DatasetDict` is a folder of such folders, one for each
split. Only the files are read, without that package.
"""

from collections.abc import Callable

import orjson

STATE = "state.json"


class DatasetFault(Exception):
    """Why a folder that looks like a dataset cannot be read: what is wrong, and what to do."""

    def __init__(self, fault: str, advice: str) -> None:
        super().__init__(fault)
        self.advice = advice


def list_dataset_files(names: list[str], read_state: Callable[[], bytes]) -> list[str] | None:
    """Of the names in a folder those of the dataset's own files, in its order; None where it is no dataset.

    `read_state` gives what STATE holds, where the folder has it. Files that `datasets` keeps beside them
    (cache-*.arrow) are none. Raises DatasetFault.
    """
    if STATE not in names:
        return None
    try:
        state = orjson.loads(read_state())
        if not isinstance(state, dict) or "_data_files" not in state:
            return None
        files = [entry["filename"] for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        if "dataset_info.json" not in names:
            return None
        advice = "Save the dataset again with save_to_disk"
        raise DatasetFault(f"is a dataset whose {STATE} cannot be read ({type(error).__name__})", advice) from error
    if any(value for key, value in state.items() if key.startswith("_indices") and isinstance(value, list)):
        raise DatasetFault(
            "is a dataset with an indices mapping, as select, filter, shuffle and sort leave one: its rows are not "
            "those of its files",
            "Call flatten_indices() on it, then save_to_disk again",
        )
    missing = next((name for name in files if name not in names), None)
    if missing is not None:
        raise DatasetFault(f"is a dataset without its file {missing}", "Copy or save it again")
    return files
