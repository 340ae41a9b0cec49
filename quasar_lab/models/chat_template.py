"""A conversation through a model's chat template, in bounded time and memory.

## Idea

A chat template is a program that came with the model. jinja's sandbox keeps it away from files and from Python's
insides, but not from work without end: three nested loops over large ranges, or a text that doubles forty times. So it
runs in a process of its own, which the system stops at a limit of memory and of computing time. Whatever happens
there, the caller gets a text or one InputError.

## Choice

A limit that only looks at the template's steps would miss one single step that builds gigabytes. The process starts
without this package, which takes about a tenth of a second, and the texts of the last conversations are remembered.

## What is lost

That tenth of a second, for every new prompt. On systems without memory limits (macOS) the clock alone stops a template.
"""

import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from quasar_lab.support.errors import InputError
from quasar_lab.support.result import Json

MEMORY = 1 << 29
"""Bytes that a template may use, the interpreter included."""
SECONDS = 5
"""Of computing that a template may take; of waiting, `PATIENCE` times as many, since other work may keep it waiting."""
PATIENCE = 6
LONGEST = 10_000_000
"""Characters that a conversation may become."""


def render(template: str, values: Json) -> str:
    """The text of a template with these values, which are plain JSON.

    Raises InputError when the template refuses them, fails on them, or exceeds a limit.
    """
    try:
        written = json.dumps(values)
    except (TypeError, ValueError) as error:
        raise InputError(f"a value for the chat template is not understood ({error}); accepted: JSON values") from error
    return _remembered(template, written, SECONDS)


@lru_cache(maxsize=256)
def _remembered(template: str, values: str, seconds: int) -> str:
    request = {
        "template": template,
        "values": json.loads(values),
        "memory": MEMORY,
        "seconds": seconds,
        "longest": LONGEST,
    }
    answer = _ask(json.dumps(request), seconds)
    if "error" in answer:
        raise InputError(f"the model's chat template refuses these messages: {' '.join(answer['error'].split())}")
    return answer["text"]


def _ask(request: str, seconds: int) -> dict[str, Any]:
    """What the process says of a request; why it says nothing, as an error of the same form."""
    script = str(Path(__file__).with_name("template_process.py"))
    try:
        done = subprocess.run(
            [sys.executable, "-I", script],
            input=request.encode(),
            capture_output=True,
            timeout=PATIENCE * seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"it takes more than {PATIENCE * seconds} seconds"}
    except OSError as error:
        raise InputError(f"the chat template cannot be rendered: no process can be started ({error})") from error
    if done.returncode == 0:
        return json.loads(done.stdout)
    if done.returncode < 0:  # a signal: the limit of computing time, or the system short of memory
        return {"error": f"it takes more than {seconds} seconds or more memory than there is"}
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return {"error": lines[-1] if lines else f"its process ended with status {done.returncode}"}
