"""The comparison of foreign files: what is counted as what, and what a missing folder says."""

import pathlib
import subprocess
import sys

SCRIPTS = pathlib.Path(__file__).parent
sys.path.insert(0, str(SCRIPTS))

from proof import compare_files, corpora  # noqa: E402
from proof.running import Amounts  # noqa: E402


def give(value):
    def reader(_=None):
        if isinstance(value, Exception):
            raise value
        return value

    return reader


def test_every_outcome_has_its_name():
    refused = compare_files.Refused("no such code")
    crashed = compare_files.Crashed("the daemon is gone")
    unread = ValueError("broken")
    for reference, ours, verdict in [
        (1, True, ("equal", "")),
        (1, False, ("different", "")),
        (1, refused, ("refused", "no such code")),
        (unread, refused, ("both refuse", "no such code")),
        (unread, False, ("read beyond the reference", "ValueError")),
        (1, crashed, ("crashed", "the daemon is gone")),
        (unread, crashed, ("crashed", "the daemon is gone")),
    ]:
        assert compare_files.compared(give(reference), give(ours)) == verdict


def test_equal_reasons_are_counted_together():
    first, second = (
        f"bad sample 0 in epoch 0: /tmp/{number}/files.jsonl:1: it has {number} samples; repair or remove the file"
        for number in (7, 12)
    )
    assert compare_files.reason(first) == compare_files.reason(second) == "it has # samples"


def test_a_crash_misses_the_goal_and_a_difference_is_shown():
    counts = {"equal": 1200, "different": 2, "crashed": 1}
    found = {"corpora": {"pillow": {"pictures": {"counts": counts, "reasons": {}, "files": {}}}}}
    (line,) = corpora.lines(found, Amounts())
    assert (line.result, line.reached) == ("1,200 equal, 2 different, 1 crashed", False)
    del counts["crashed"]
    (line,) = corpora.lines(found, Amounts())
    assert line.reached


def test_without_a_folder_the_comparison_is_skipped_and_says_so():
    command = [sys.executable, str(SCRIPTS / "prove"), "--only", "corpora", "--short"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "corpora: skipped: it needs foreign files, `--folder DIR`" in ended.stderr
    assert "foreign files" not in ended.stdout
