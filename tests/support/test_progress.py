"""Progress is one line where a person watches, and what stays of it is how it ended."""

import io
import sys

from quasar_lab.evaluation import decode_speed
from quasar_lab.support import progress


def in_a_cell(monkeypatch):
    """stdout of a notebook cell, from now on."""
    monkeypatch.delenv("QUASAR_HEADLESS", raising=False)
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    monkeypatch.setattr(sys, "stdout", stream)
    return stream


def seen(text):
    """The lines that a reader sees: what follows a carriage return overwrites the line."""
    lines = []
    for line in text.split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return [line for line in lines if line]


def test_a_count_in_a_cell_is_one_line_and_ends_with_the_total(monkeypatch):
    cell = in_a_cell(monkeypatch)
    progress.announce("Preparing …")
    for item in progress.track(range(12), 12, "Calibrating", every=-1):
        assert seen(cell.getvalue()) == ["Preparing …", f"Calibrating: {item} of 12"]
    progress.announce("ready")
    assert seen(cell.getvalue()) == ["Preparing …", "Calibrating: 12 of 12", "ready"]


def test_a_count_that_was_cut_says_where_it_stopped(monkeypatch):
    cell = in_a_cell(monkeypatch)
    for item in progress.track(range(48), 48, "Answering", every=-1):
        if item == 28:
            break
    assert seen(cell.getvalue()) == ["Answering: stopped at 28 of 48"]


def test_short_work_says_nothing(monkeypatch):
    cell = in_a_cell(monkeypatch)
    assert list(progress.track(range(3), 3, "Calibrating")) == [0, 1, 2]
    assert cell.getvalue() == ""


def test_a_shorter_line_leaves_nothing_of_the_longer_one(monkeypatch):
    cell = in_a_cell(monkeypatch)
    progress.announce("a long line of progress", passing=True)
    progress.announce("short")
    assert seen(cell.getvalue()) == ["short"]


def test_a_report_shows_no_progress(monkeypatch):
    cell = in_a_cell(monkeypatch)
    monkeypatch.setenv("QUASAR_HEADLESS", "1")
    progress.announce("once")
    assert list(progress.track(range(3), 3, "Calibrating", every=-1)) == [0, 1, 2]
    assert cell.getvalue() == ""


def test_a_log_has_a_line_for_each_count(capsys):
    list(progress.track(range(2), 2, "Calibrating", every=-1))
    assert capsys.readouterr().err.splitlines() == [f"Calibrating: {done} of 2" for done in (0, 1, 2)]


def test_the_count_of_answers_is_one_line_too(monkeypatch):
    cell = in_a_cell(monkeypatch)
    monkeypatch.setattr(decode_speed, "PROGRESS_SECONDS", -1)
    told = decode_speed.Progress(3, 0)
    for done in (1, 2, 3):
        told.tell(done)
    assert seen(cell.getvalue()) == ["3 of 3 answers"]
